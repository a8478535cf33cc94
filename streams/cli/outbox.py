"""`steadfaust outbox`: run a relay, and inspect and clean up the outbox.

Exit status: 0 done, 1 an error, 3 nothing matched, 4 `status` found rows that a broker refused or that no
relay publishes, or a replication slot with a warning.
"""

from __future__ import annotations

import asyncio
import signal
from base64 import b64encode
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from streams.cli.database import DryRun, Url, slot_json, slot_line, with_connection
from streams.cli.options import NOTHING, Json, Limit, json_line, say
from streams.errors import SteadfaustError
from streams.logs import configure_logs
from streams.postgres.database import Connection
from streams.postgres.outbox import operations
from streams.postgres.outbox_owner import why_nobody_relays
from streams.postgres.replication_slot import SlotLag, slot_lag
from streams.settings import Settings
from streams.testing.faults import faults_from_environment
from streams.units import DAY

app = typer.Typer(help="Publish, inspect and clean up the outbox in PostgreSQL.", no_args_is_help=True)

REFUSED = 4


class State(StrEnum):
    """States of outbox rows."""

    WAITING = "waiting"
    FAILED = "failed"
    PUBLISHED = "published"
    ARCHIVED = "archived"


@app.command()
def relay(
    port: Annotated[
        int,
        typer.Option(
            envvar="PORT", min=0, max=65535, help="Port for /health and /metrics (0 picks a free port)."
        ),
    ] = 6160,
    host: Annotated[
        str, typer.Option(help="Address for /health and /metrics (0.0.0.0: also from other machines).")
    ] = "127.0.0.1",
) -> None:
    """Publish the outbox to Kafka until Ctrl-C or SIGTERM. Several relays may run at once.

    With STEADFAUST_OUTBOX=cdc it supervises the Kafka Connect connector that publishes.
    """
    configure_logs(detached=True)
    asyncio.run(_relay(Settings.read_checked(), port, host))  # `main` has looked at the names


async def _relay(settings: Settings, port: int, host: str) -> None:
    from streams.host.access import check_access
    from streams.postgres.relay_service import RelayService

    await check_access(settings)
    service = RelayService(settings, port=port, host=host, faults=faults_from_environment())
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await service.start()
    if service.server is not None:
        say(f"relay: {service.server.url}/health")
    waits = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(service.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await service.stop()
    if service.failure is not None:
        raise SteadfaustError(f"the relay has failed: {service.failure!r}") from service.failure


@app.command()
def status(url: Url = "", *, as_json: Json = False) -> None:
    """Show how many rows wait and for how long, and the state of the replication slot, if there is one.

    Exit status 4 if brokers refused rows, if rows wait and no relay runs, or if the slot is lost or about to
    fill the disk.
    """

    async def work(connection: Connection) -> tuple[operations.OutboxStatus, SlotLag | None, str]:
        found, slot = await operations.status(connection), await slot_lag(connection, warn_at)
        return found, slot, await why_nobody_relays(connection, slot) if found.unpublished else ""

    warn_at = Settings.read().outbox_slot_warn_bytes
    found, slot, problem = with_connection(url, work)
    if as_json:
        say(json_line({**found._asdict(), "slot": slot_json(slot), "problem": problem}))
    else:
        say(
            f"{found.unpublished} rows wait, the oldest for {found.oldest_seconds:.1f} s;"
            f" {found.failed} were refused; the table takes {found.table_bytes / 1e6:.1f} MB"
        )
        if slot is not None:
            say(f"slot: {slot_line(slot)}" + (f"; {slot.warning}" if slot.warning else ""))
        if problem:
            say(f"problem: {problem}")
    raise typer.Exit(REFUSED if found.failed or problem or (slot and slot.warning) else 0)


@app.command("list")
def list_(
    url: Url = "",
    *,
    state: Annotated[State, typer.Option(help="Only rows in this state.")] = State.WAITING,
    topic: Annotated[str, typer.Option(help="Only rows of this topic.")] = "",
    aggregate: Annotated[str, typer.Option(help="Only rows with this aggregate id.")] = "",
    after: Annotated[int, typer.Option(help="Only rows after this position.")] = 0,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List rows. By default, those that wait to be published."""
    rows = with_connection(
        url,
        lambda c: operations.listed(c, state, topic=topic, aggregate=aggregate, after=after, limit=limit),
    )
    _print(rows, as_json=as_json)


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="Id of the message.")],
    url: Url = "",
    *,
    as_json: Json = False,
) -> None:
    """Show one row in full, with its payload in base64."""
    row = with_connection(url, lambda c: operations.shown(c, message_id))
    if row is None:
        say(f"there is no row with id {message_id}", err=True)
        raise typer.Exit(NOTHING)
    if as_json:
        say(json_line(_plain(row)))
        return
    for name, value in _plain(row).items():
        if value is not None:
            say(f"{name:<20}{value}")


@app.command()
def republish(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of messages.")] = None,
    url: Url = "",
    *,
    failed: Annotated[bool, typer.Option("--failed", help="All rows that brokers refused.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Publish rows again at once, including archived ones.

    A message that was already published arrives a second time, with the same id.
    """
    if bool(ids) == failed:
        raise typer.BadParameter("give ids, or --failed")
    rows = with_connection(url, lambda c: operations.republish(c, ids or [], failed=failed, dry_run=dry_run))
    _print(rows, as_json=as_json)


@app.command()
def cleanup(
    url: Url = "",
    *,
    older_than: Annotated[
        float | None,
        typer.Option(help="Days since publication. Default: the outbox retention in the settings."),
    ] = None,
    step: Annotated[int, typer.Option(min=1, help="Rows per transaction.")] = operations.STEP,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete rows that were published long ago, including archived ones. Relays may keep running."""
    seconds = (Settings.read().outbox_retention_days if older_than is None else older_than) * DAY
    if dry_run:
        count = with_connection(url, lambda c: operations.removable(c, seconds))
    else:
        count = with_connection(url, lambda c: operations.cleanup(c, seconds, step=step))
    did = "would remove" if dry_run else "removed"
    say(json_line({"rows": count, "dry_run": dry_run}) if as_json else f"{did} {count} rows")


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    for row in map(_plain, rows):
        if as_json:
            say(json_line(row))
            continue
        line = f"{row['position']:>10} {row['id']:<38} {row['topic']} {row['aggregate_id']}"
        error = f" refused {row['attempts']} times: {row['last_error']}" if row.get("last_error") else ""
        say(line + error)
    raise typer.Exit(0 if rows else NOTHING)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value
