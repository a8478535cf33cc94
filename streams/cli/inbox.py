"""`steadfaust inbox`: the ids that consumers have handled, in PostgreSQL.

Exit status: 0 done; 1 an error; 3 there is no such consumer, or none at all.
"""

from __future__ import annotations

from typing import Annotated

import typer

from streams.cli.database import DryRun, Url, with_database
from streams.cli.options import NOTHING, Json, json_line, say
from streams.postgres.database import Database
from streams.postgres.inbox import ConsumerInbox
from streams.postgres.inbox.consumer_status import ConsumerStatus, Size, consumers, count_old, size, standing
from streams.settings import Settings
from streams.units import MIB

app = typer.Typer(help="Show and clean up consumer inboxes in PostgreSQL.", no_args_is_help=True)


Consumer = Annotated[str, typer.Argument(help="Name of a consumer. Default: all.")]


@app.command()
def status(consumer: Consumer = "", url: Url = "", *, as_json: Json = False) -> None:
    """Show each consumer's entries: how many, how many are recent, the oldest, and their size."""
    found, all_of_it = with_database(url, lambda database: _status(database, consumer))
    if as_json:
        for each in found:
            say(json_line({**each._asdict(), **all_of_it._asdict()}))
    else:
        for each in found:
            say(_consumer_line(each))
        mib = all_of_it.table_bytes / MIB, all_of_it.index_bytes / MIB
        say(f"all consumers: {mib[0]:,.1f} MiB of rows, {mib[1]:,.1f} MiB of indexes")
    raise typer.Exit(0 if found else NOTHING)


@app.command()
def cleanup(
    consumer: Consumer = "",
    older_than_days: Annotated[
        float | None,
        typer.Option(
            help="Minimum age of the entries. Default: the inbox retention. The command refuses an age"
            " if a replay could still need entries of that age."
        ),
    ] = None,
    url: Url = "",
    *,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete old entries in batches of 10,000. Consumers may keep running."""
    settings = Settings.read()
    days = settings.inbox_retention_days if older_than_days is None else older_than_days
    needed = settings.duplicates_within()
    found = with_database(url, lambda database: _cleanup(database, consumer, days, needed, dry_run=dry_run))
    for name, entries in found.items():
        if as_json:
            say(json_line({"consumer_name": name, "entries": entries, "deleted": not dry_run}))
        else:
            say(f"{name}: {entries:,} entries {'would be' if dry_run else 'were'} deleted")
    raise typer.Exit(0 if found else NOTHING)


async def _status(database: Database, consumer: str) -> tuple[list[ConsumerStatus], Size]:
    async with database.acquire() as connection:
        names = [name for name in await consumers(connection) if consumer in ("", name)]
        return [await standing(connection, name) for name in names], await size(connection)


async def _cleanup(
    database: Database, consumer: str, days: float, needed: float, *, dry_run: bool
) -> dict[str, int]:
    async with database.acquire() as connection:
        names = [name for name in await consumers(connection) if consumer in ("", name)]
    found = {}
    for name in names:
        inbox = ConsumerInbox(database, name, duplicates_within=needed)
        inbox.require_retention(days)
        if dry_run:
            async with database.acquire() as connection:
                found[name] = await count_old(connection, name, days)
        else:
            found[name] = await inbox.cleanup_old_entries(days)
    return found


def _consumer_line(each: ConsumerStatus) -> str:
    times = "" if each.mean_ms is None else f", mean {each.mean_ms:.1f} ms, p99 {each.p99_ms or 0:.1f} ms"
    oldest = f", oldest {each.oldest:%Y-%m-%d %H:%M:%S}" if each.oldest else ""
    return (
        f"{each.consumer_name:<30} {each.rows:>12,} entries, {each.last_hour:,} in the last hour,"
        f" {each.last_day:,} in the last day{oldest}{times}"
    )
