"""`steadfaust claims sweep`: delete objects that no message refers to any more.

The clients of S3 and Kafka are imported inside functions, because importing them takes a second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from streams.cli.options import json_line, say
from streams.errors import SettingsError, SteadfaustError, TopicMismatch
from streams.model.layout import CLAIMS
from streams.s3.sweep import Sweepable, SweepReport, sweep
from streams.settings import Settings
from streams.units import DAY

app = typer.Typer(help="Clean up payloads in the object store.", no_args_is_help=True)

UNFINISHED = 2
"""Exit status if S3 or Kafka did not answer. Whatever was deleted before were orphans."""


@app.callback()
def _claims() -> None:
    """Clean up payloads in the object store."""


@app.command("sweep")
def sweep_claims(
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the objects that were found. Default: only count them.")
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(
            help="Grace period: keep objects younger than this number of days. Default and minimum: the"
            " message retention."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Find objects that are older than the grace period and that no message refers to; --delete removes them.

    Exit status 0 if it finished, 1 if a setting is wrong, 2 if S3 or Kafka did not answer.
    """
    settings = Settings.read()
    seconds = grace_of(settings, grace)
    quiet = as_json or not sys.stderr.isatty()
    try:
        report = asyncio.run(_sweep(settings, seconds, delete=delete, quiet=quiet))
    except SettingsError:
        raise
    except SteadfaustError as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(UNFINISHED) from error
    for line in [json_line(report)] if as_json else lines(report, delete=delete):
        say(line)


def grace_of(settings: Settings, days: float | None) -> float:
    """The grace period in seconds. Raises SettingsError if it is shorter than the retention of messages:
    until a lane has read a message, no row refers to its payload.
    """
    least = settings.message_retention_days
    if days is not None and days < least:
        raise SettingsError(
            f"a grace period of {days:g} days is shorter than the retention of messages ({least:g} days): a"
            " payload could be deleted before its message is read. Use a longer one, or set"
            " STEADFAUST_MESSAGE_RETENTION_DAYS to the retention of the topics"
        )
    return (least if days is None else days) * DAY


def lines(report: SweepReport, *, delete: bool) -> list[str]:
    found = [
        f"{verdict:<11}{tally.objects:>10,}{tally.bytes:>18,}" for verdict, tally in report.found.items()
    ]
    deleted = report.deleted
    end = (
        f"deleted    {deleted.objects:>10,}{deleted.bytes:>18,}"
        if delete
        else "nothing was deleted; --delete removes orphans"
    )
    return [f"{'':<11}{'objects':>10}{'bytes':>18}", *found, end]


async def _sweep(settings: Settings, grace: float, *, delete: bool, quiet: bool) -> SweepReport:
    from streams.s3 import blobs_of

    blobs = blobs_of(settings)
    if blobs is None:
        raise SettingsError(
            "no object store is configured: set STEADFAUST_S3_BUCKET, or declare `buckets` in"
            " [tool.steadfaust.local] for the local stack"
        )

    def progress(report: SweepReport) -> None:
        if not quiet:
            orphans = report.found[Sweepable.ORPHAN].objects
            deleted = report.deleted.objects
            say(f"\r{report.names:,} names, {orphans:,} orphans, {deleted:,} deleted", nl=False, err=True)

    try:
        names = referenced(settings)
        report = await sweep(blobs, names, now=time.time, grace=grace, delete=delete, progress=progress)
    finally:
        await blobs.close()
        if not quiet:
            say("", err=True)
    return report


async def referenced(settings: Settings) -> AsyncIterator[str]:
    """The objects that outbox rows refer to, then those that rows of lanes refer to, up to the present end of
    the changelog. The outbox comes first, because a relay may pass its messages on to lanes meanwhile.

    Raises SettingsError if the outbox may delete a message before a lane has read it, or if no worker of the
    application has run with an object store.
    """
    from streams.host.client import TopicReader

    for name in await _in_outbox(settings):
        yield name
    layout = settings.layout()
    changelog = layout.changelog(CLAIMS)
    try:
        async with TopicReader(settings.brokers(), [changelog]) as reader:
            async for record in reader.to_end():
                if record.value is not None:
                    yield (record.key or b"").decode()
    except TopicMismatch as error:
        raise SettingsError(
            f"there is no topic {changelog}: no worker of {layout.app_id} has run with an object store. Set"
            " STEADFAUST_APP_ID to the application whose objects these are"
        ) from error


async def _in_outbox(settings: Settings) -> list[str]:
    """Names of objects, without their bucket. None if neither the settings nor the local stack have a
    database.
    """
    from streams.postgres.database import connect
    from streams.postgres.outbox.operations import referenced as references

    try:
        url = settings.postgres()
    except SettingsError:  # there is no database
        return []
    connection = await connect(url, name="steadfaust claims")
    try:
        found = await references(connection)
    finally:
        await connection.close()
    rows, messages = settings.outbox_retention_days, settings.message_retention_days
    if found and rows < messages:
        raise SettingsError(
            f"the outbox keeps published rows for {rows:g} days, but topics keep messages for {messages:g}: a"
            " payload could be deleted before its message is read. Raise STEADFAUST_OUTBOX_RETENTION_DAYS"
        )
    return [each.removeprefix("s3://").partition("/")[2] for each in found]
