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

Url = Annotated[str, typer.Option("--url", help="postgresql://...; that of the settings unless given.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be touched.")]


def with_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """The result of work on this database or that of the settings. Raises DatabaseUnavailable."""

    async def run() -> T:
        async with Database(url or Settings.read().postgres(), most=2, name="steadfaust") as database:
            return await work(database)

    with curable_told(others=True):
        return asyncio.run(run())


def with_connection(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """The result of work on one connection to this database or that of the settings. Raises
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
    """The state of the replication slot, how far it is behind, and how much log it keeps."""
    room = "no limit" if slot.room is None else f"{slot.room / MIB:.0f} MiB more at most"
    return f"{slot.status}, {slot.behind / MIB:.1f} MiB behind, keeps {slot.retained / MIB:.1f} MiB, {room}"


def slot_json(slot: SlotLag | None) -> dict[str, object] | None:
    """The same for machines, with its warning. None if there is no slot."""
    return slot and {**slot._asdict(), "warning": slot.warning}
