"""`steadfaust erase`: erase everything that an application stores about a key (docs/erase.md).

Exit status: 0 done, 1 an error, 3 nothing was found, 4 some lanes have not answered: run the command again.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from streams.cli.options import NOTHING, UNFINISHED, Json, Timeout, Who, Why, by_whom, json_line, say
from streams.cli.schema_files import wired
from streams.cli.schemas import Of
from streams.errors import SettingsError
from streams.model.operations import KeyCommand
from streams.settings import Settings


class ErasureReport(msgspec.Struct, kw_only=True):
    """The result of an erasure, or of its dry run.

    Attributes:
        erased: counts by kind: a table's name for its rows, `timers`, `waiting`, `dead_letters`, `outbox`,
            `objects`.
        left: topics that still have records of the key, each with the time until which they are kept.
        compacted: changelogs that hold older values until Kafka compacts them.
        silent: partitions whose lane has not answered.
    """

    key: str
    dry_run: bool
    erased: dict[str, int]
    left: list[dict[str, str | int]]
    compacted: list[str]
    silent: list[int]


def erase(
    key: Annotated[str, typer.Argument(help="Key of the messages and rows.")],
    of: Of = None,
    *,
    why: Why,
    who: Who = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be erased.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    timeout: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Erase a key's rows, timers, waiting messages, dead letters, outbox rows and objects.

    Run it while workers are running, and after clients have stopped sending messages of this key. It also
    lists the topics that still hold records of the key, and until when.
    """
    found = wired(of)
    messages = sorted({topic for wiring in found for topic in wiring.messages()})
    sources = sorted({topic for wiring in found for topic in wiring.sources()})
    if not dry_run and not yes:
        typer.confirm(f"erase everything about {key}? This cannot be undone", abort=True)
    kind = KeyCommand.FIND if dry_run else KeyCommand.ERASE
    report = asyncio.run(_erase(messages, sources, key, kind, who=by_whom(who), why=why, timeout=timeout))
    if as_json:
        say(json_line(report))
    else:
        _tell(report)
    if report.silent:
        say(f"no answer from partitions {report.silent}: run the same command again", err=True)
        raise typer.Exit(UNFINISHED)
    raise typer.Exit(0 if report.erased or report.left else NOTHING)


async def _erase(
    messages: list[str], sources: list[str], key: str, kind: KeyCommand, *, who: str, why: str, timeout: float
) -> ErasureReport:
    from streams.engine.life.positions.review import require_partitions
    from streams.host.erasing import ask_lanes, left_in_topics
    from streams.kafka.cluster import KafkaCluster  # takes a second to load

    settings, dry_run = Settings.read(), kind is KeyCommand.FIND
    layout, brokers = settings.layout(), settings.brokers()
    cluster = KafkaCluster(brokers)
    try:
        await require_partitions(layout, cluster)
    finally:
        await cluster.close()
    # First, because a relay might still publish the rows.
    rows, objects = await _from_outbox(settings, key, dry_run=dry_run)
    answers = await ask_lanes(brokers, layout, kind, key, who=who, why=why, timeout=timeout)
    left, more = await left_in_topics(brokers, layout, messages, key)
    left += (await left_in_topics(brokers, layout, sources, key))[0]  # what others refer to is not ours
    names = sorted({*objects, *more, *answers.objects})
    erased = dict(answers.found) | ({"outbox": rows} if rows else {})
    if await _from_store(settings, [] if dry_run else names) and names:
        erased["objects"] = len(names)
    kinds = answers.found.keys() - {"timers", "waiting"}
    tables = {*kinds, *(["lane"] if answers.found["timers"] or answers.found["waiting"] else [])}
    return ErasureReport(
        key=key,
        dry_run=dry_run,
        erased={name: count for name, count in erased.items() if count},
        left=[msgspec.to_builtins(each) for each in left],
        compacted=sorted(map(layout.changelog, tables)),
        silent=sorted(answers.silent),
    )


async def _from_outbox(settings: Settings, key: str, *, dry_run: bool) -> tuple[int, list[str]]:
    """The number of outbox rows, and the objects that they refer to. Nothing if there is no database."""
    try:
        url = settings.postgres()
    except SettingsError:
        if settings.postgres_url or settings.postgres_password_file:
            raise
        return 0, []  # there is no database
    from streams.postgres.database import connect
    from streams.postgres.outbox.operations import erase as erase_rows

    connection = await connect(url, name="steadfaust erase")
    try:
        rows, objects = await erase_rows(connection, key, dry_run=dry_run)
    finally:
        await connection.close()
    return rows, [each.removeprefix("s3://").partition("/")[2] for each in objects]


async def _from_store(settings: Settings, names: list[str]) -> bool:
    """Delete objects. Returns whether there is an object store."""
    if settings.bucket() is None:
        return False
    from streams.s3 import blobs_of

    blobs = blobs_of(settings)
    if blobs is None:
        return False
    try:
        if names:
            await blobs.delete(names)
    finally:
        await blobs.close()
    return True


def _tell(report: ErasureReport) -> None:
    say("would be erased" if report.dry_run else "erased")
    for name, count in report.erased.items():
        say(f"{count:>10,}  {name}")
    if not report.erased:
        say("         0")
    for each in report.left:
        until = (
            f"kept until {each['until']}" if each["until"] else "kept for ever: the topic has no retention"
        )
        say(f"left: {each['records']} records in {each['topic']}, {until}")
    for changelog in report.compacted:
        say(f"left: earlier values in {changelog}, until Kafka compacts it")
