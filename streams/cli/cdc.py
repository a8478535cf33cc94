"""`steadfaust cdc`: the outbox by change data capture.

Exit status: 0 done, and `status` found no problem; 1 an error; 4 `status` found a problem, which it prints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec
import typer

from streams.cli.database import Url, slot_json, slot_line, with_database
from streams.cli.options import Json, json_line, say
from streams.postgres import Database
from streams.postgres.cdc import (
    CdcRelay,
    CdcStatus,
    Connect,
    RelayKind,
    cdc_status,
    hand_over,
    outbox_owner,
)
from streams.postgres.cdc.connector import connector_settings, worker_properties
from streams.postgres.cdc.lifecycle import end
from streams.postgres.cdc.relay import STEP
from streams.postgres.errors import ConnectBusy, ConnectUnavailable
from streams.postgres.relay import After
from streams.settings import Settings

app = typer.Typer(help="Publish the outbox by change data capture.", no_args_is_help=True)

TROUBLE = 4
STARTED_WITHIN = 120.0
"""Maximum seconds until the connector's task runs."""

_SETTLED_AFTER = 15.0
"""Seconds of running after which a warning about the slot counts."""

T = TypeVar("T")

ConnectUrl = Annotated[
    str, typer.Option("--connect", help="URL of Kafka Connect. Default: the one in the settings.")
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Take over from polling relays; they stop after their current round."),
]


@app.command()
def start(url: Url = "", connect: ConnectUrl = "", *, take_over: TakeOver = False) -> None:
    """Start the connector that publishes the outbox, and wait until it runs.

    From then on `steadfaust outbox relay`, with STEADFAUST_OUTBOX=cdc, supervises it.
    """

    async def work(database: Database, at: Connect) -> CdcStatus:
        if take_over:
            async with database.acquire() as connection:
                await hand_over(connection, RelayKind.CDC)
        relay, problem, ran = _relay(database, at), "", 0
        try:
            async with asyncio.timeout(STARTED_WITHIN):
                while True:
                    try:
                        status = await relay.step()
                        ran = ran + 1 if _runs(status) else 0
                        # A connector that has just started may warn about its slot for a moment.
                        if ran and (not status.problem or ran * STEP > _SETTLED_AFTER):
                            return status
                        problem = status.problem
                    except ConnectBusy as error:
                        problem = str(error)
                    await asyncio.sleep(STEP)
        except TimeoutError:
            raise ConnectUnavailable(
                f"the connector is still not running after {STARTED_WITHIN:.0f} s: {problem}"
            ) from None

    _print(_run(url, connect, work))


@app.command()
def status(url: Url = "", connect: ConnectUrl = "", *, as_json: Json = False) -> None:
    """Show what publishes the outbox, the state of the connector, and how much WAL its slot retains."""

    async def work(database: Database, at: Connect) -> tuple[RelayKind | None, CdcStatus]:
        async with database.acquire() as connection:
            owner = await outbox_owner(connection)
        return owner, await cdc_status(database, at, Settings.read().outbox_slot_warn_bytes)

    owner, found = _run(url, connect, work)
    if as_json:
        say(json_line({"owner": owner, **_as_json(found)}))
    else:
        say(f"owner      {owner or 'none yet'}")
        _print(found)
    raise typer.Exit(TROUBLE if found.problem else 0)


@app.command()
def stop(
    url: Url = "",
    connect: ConnectUrl = "",
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
) -> None:
    """Remove the connector and its slot, and hand the outbox over to polling relays."""
    if dry_run:
        say("would remove the connector and its slot, and hand the outbox over to polling relays")
        return

    async def work(database: Database, at: Connect) -> None:
        async with database.acquire() as connection:
            await end(connection, at)

    _run(url, connect, work)
    say("polling relays now publish the outbox")


@app.command()
def files(kind: Annotated[str, typer.Argument(help="Which file: worker or connector.")]) -> None:
    """Print Connect's worker.properties or the connector's JSON. Both are also in `ops/`."""
    if kind == "worker":
        text = worker_properties(Settings.read().security())
    elif kind == "connector":
        text = msgspec.json.format(msgspec.json.encode(connector_settings()), indent=2).decode()
    else:
        raise typer.BadParameter(f"{kind!r} is neither worker nor connector")
    for line in text.splitlines():
        say(line)


def _relay(database: Database, at: Connect) -> CdcRelay:
    settings = Settings.read()
    after, warn_at = After(settings.outbox_after), settings.outbox_slot_warn_bytes
    return CdcRelay(database, at, after=after, slot_warn_at=warn_at)


def _as_json(found: CdcStatus) -> dict[str, object]:
    connector = found.connector and {
        "state": found.connector.state,
        "tasks": [task._asdict() for task in found.connector.tasks],
    }
    return {
        "problem": found.problem,
        "connector": connector,
        "slot": slot_json(found.slot),
    }


def _runs(status: CdcStatus) -> bool:
    return status.connector is not None and status.connector.is_running


def _run(url: str, connect: str, work: Callable[[Database, Connect], Awaitable[T]]) -> T:
    async def run(database: Database) -> T:
        async with Connect(connect or Settings.read().connect()) as at:
            return await work(database, at)

    return with_database(url, run)


def _print(found: CdcStatus) -> None:
    tasks = () if found.connector is None else found.connector.tasks
    states = ", ".join(f"task {task.id} {task.state}" for task in tasks) or "no task"
    say(f"connector  {'none' if found.connector is None else found.connector.state}, {states}")
    say(f"slot       {slot_line(found.slot) if found.slot else 'none'}")
    say(f"problem    {found.problem or 'none'}")
