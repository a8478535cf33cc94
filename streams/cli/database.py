"""Options and connections of commands about PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from streams.postgres.advice import curable_told
from streams.postgres.database import Connection, Database, connect
from streams.postgres.replication_slot import SlotLag
from streams.settings import Settings
from streams.units import MIB

T = TypeVar("T")

Url = Annotated[str, typer.Option("--url", help="postgresql://... Default: the database in the settings.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be affected.")]


def with_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run `work` with a pool for `url`, or for the database in the settings. Raises DatabaseUnavailable."""

    async def run() -> T:
        async with Database(url or Settings.read().postgres(), most=2, name="steadfaust") as database:
            return await work(database)

    with curable_told(others=True):
        return asyncio.run(run())


def with_connection(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run `work` with one connection to `url`, or to the database in the settings. Raises
    DatabaseUnavailable.
    """

    async def run() -> T:
        connection = await connect(url or Settings.read().postgres(), name="steadfaust")
        try:
            return await work(connection)
        finally:
            await connection.close()

    with curable_told(others=True):
        return asyncio.run(run())


def slot_line(slot: SlotLag) -> str:
    """The state of the replication slot, its lag, and how much log PostgreSQL keeps for it."""
    room = "no limit" if slot.room is None else f"room for {slot.room / MIB:.0f} MiB more"
    return f"{slot.status}, {slot.behind / MIB:.1f} MiB behind, keeps {slot.retained / MIB:.1f} MiB, {room}"


def slot_json(slot: SlotLag | None) -> dict[str, object] | None:
    """The state of the replication slot for JSON, with its warning. None if there is no slot."""
    return slot and {**slot._asdict(), "warning": slot.warning}
