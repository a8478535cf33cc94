"""`steadfaust dlq foreign`: dead letter topics of Spring Kafka, Kafka Streams and Kafka Connect.

It needs brokers alone, no worker. Exit status: 0 done, 1 an error, 3 nothing matched, 4 a replay did not come
to its end: the same command goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Annotated, Any

import typer

from streams.cli.options import NOTHING, UNFINISHED, Json, Limit, Who, Why, by_whom, echo, json_line, say
from streams.engine.waiting.dead_letters.foreign import FILTERS, ForeignLetter
from streams.errors import Fenced, TransactionFailed
from streams.settings import Settings

app = typer.Typer(
    help="Dead letter topics of Spring Kafka, Kafka Streams and Connect: list, groups, replay, log.",
    no_args_is_help=True,
)

Letters = Annotated[str, typer.Argument(help="The topic of dead letters.")]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", help=f"NAME=VALUE, all of them must hold; names: {', '.join(FILTERS)}."),
]
Log = Annotated[str, typer.Option("--log", help="The topic with the log of replays.")]
LOG = "steadfaust.redriven"


@app.command("list")
def list_(
    letters: Letters, where: Where = None, log: Log = LOG, *, limit: Limit = 50, as_json: Json = False
) -> None:
    """List letters: where each failed, of what, and whether it was replayed."""

    async def run() -> int:
        printed = 0
        async with aclosing(_redrive(letters, log, where).letters()) as found:
            async for letter, _, replayed in found:
                row = {**letter._asdict(), "replayed": replayed}
                say(json_line(row) if as_json else _letter_line(letter, replayed=replayed))
                printed += 1
                if printed == limit:
                    break
        return printed

    raise typer.Exit(0 if asyncio.run(run()) else NOTHING)


@app.command()
def groups(letters: Letters, where: Where = None, log: Log = LOG, *, as_json: Json = False) -> None:
    """Count letters that have failed alike (topic, error, group or connector), and how many were replayed."""
    found = asyncio.run(_grouped(_redrive(letters, log, where)))
    _print_groups(found, as_json=as_json)
    raise typer.Exit(0 if found else NOTHING)


@app.command()
def replay(
    letters: Letters,
    where: Where = None,
    log: Log = LOG,
    *,
    why: Why,
    who: Who = "",
    to: Annotated[str, typer.Option(help="A topic for all; each goes where it came from unless given.")] = "",
    most: Annotated[int, typer.Option(min=0, help="Letters at most; 0: all that match.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Letters in a second at most; 0: no limit.")] = 200.0,
    drop_header: Annotated[
        list[str] | None,
        typer.Option(help="Leave out this header; `x-*` for all that begin so."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be replayed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before.")] = False,
    as_json: Json = False,
) -> None:
    """Write letters to the topic that they came from, without the headers of their failure, of replication,
    or of an expiry that has passed. Each is replayed once: a command that was stopped or killed goes on where
    it was when it is given again.
    """
    given = {"to": to, "most": most, "rate": rate, "who": by_whom(who), "why": why, "drop": drop_header or ()}
    if dry_run or not yes:
        planned = _redrive(letters, log, where, **given)
        found = asyncio.run(_grouped(planned, count_headers=True))
        _print_groups(found, as_json=as_json)
        _print_headers(planned.progress, to)
        left = sum(count - replayed for count, replayed in found.values())
        if dry_run or not left:
            raise typer.Exit(0 if left else NOTHING)
        typer.confirm(f"replay {min(left, most) if most else left} letters?", abort=True)
    redrive = _redrive(letters, log, where, **given)
    problem = ""
    try:
        asyncio.run(
            redrive.replay(lambda each: None if as_json else say(f"{each.replayed} replayed", err=True))
        )
    except (Fenced, TransactionFailed) as error:
        problem = f"another replay of {letters} has begun" if isinstance(error, Fenced) else str(error)
    done = redrive.progress
    names = ("looked", "matched", "before", "replayed", "homeless", "with_id")
    row: dict[str, Any] = {name: getattr(done, name) for name in names}
    row["dropped_headers"] = dict(sorted(done.dropped.items()))
    line = f"{done.replayed} replayed, {done.before} before, of {done.matched} that match of {done.looked}"
    say(json_line(row) if as_json else line)
    _print_headers(done, to)
    if done.homeless:
        say(f"{done.homeless} do not say where they came from: name a topic with --to", err=True)
    if problem:
        say(f"error: {problem}; to go on, give the same command again", err=True)
        raise typer.Exit(UNFINISHED)
    raise typer.Exit(0 if done.replayed else NOTHING)


@app.command("log")
def log_(letters: Letters, log: Log = LOG, *, as_json: Json = False) -> None:
    """Print who has replayed which letter, when and why."""
    found = asyncio.run(_redrive(letters, log, None).log())
    for entry in found:
        echo(entry, _log_line, as_json=as_json)
    raise typer.Exit(0 if found else NOTHING)


def _redrive(letters: str, log: str, where: list[str] | None, **given: Any) -> Any:
    from streams.host.redrive import Redrive, RedrivePlan  # takes a second to load

    pairs = dict(one.partition("=")[::2] for one in where or [])
    if unknown := sorted(pairs.keys() - FILTERS.keys()):
        raise typer.BadParameter(f"--where knows no {', '.join(unknown)}: use {', '.join(FILTERS)}")
    settings = Settings.read()
    plan = RedrivePlan(letters=letters, log=log, where=pairs, **given)
    return Redrive(settings.brokers(), plan, max_record=settings.max_message_bytes)


async def _grouped(
    redrive: Any, *, count_headers: bool = False
) -> dict[tuple[str, str, str, str], tuple[int, int]]:
    """How many letters have failed alike, and how many of these were replayed."""
    counts, replays = Counter[tuple[str, str, str, str]](), Counter[tuple[str, str, str, str]]()
    async with aclosing(redrive.letters()) as found:
        async for letter, record, replayed in found:
            if count_headers and not replayed:
                redrive.headers_of(record)
            alike = letter.form, letter.topic, letter.error_type, letter.by
            counts[alike] += 1
            replays[alike] += replayed
    return {alike: (count, replays[alike]) for alike, count in counts.most_common()}


def _print_groups(found: dict[tuple[str, str, str, str], tuple[int, int]], *, as_json: bool) -> None:
    for (form, topic, error, by), (count, replayed) in found.items():
        row = {
            "form": form,
            "topic": topic,
            "error_type": error,
            "by": by,
            "count": count,
            "replayed": replayed,
        }
        line = f"{count:>8}  {topic or '-'}  {error or '-'}  {by or '-'}  {form}  {replayed} replayed"
        say(json_line(row) if as_json else line)


def _print_headers(progress: Any, to: str) -> None:
    """Name the headers that replays do not have, and warn where their ids may have been handled."""
    if progress.dropped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(progress.dropped.items()))
        say(f"headers that replays do not have: {names}", err=True)
    if progress.with_id:
        where = to or "the topic"
        have = f"warning: {progress.with_id} have a ce_id"
        known = "an application that has handled it drops the replay as a repetition"
        say(f"{have}: {known}. Look who reads {where}; see docs/redrive.md", err=True)


def _log_line(entry: Any) -> str:
    way = f"{entry.letters}[{entry.partition}]@{entry.offset} to {entry.topic}[{entry.to_partition}]"
    return f"{entry.at}  {entry.who}  {way}  {entry.why}"


def _letter_line(letter: ForeignLetter, *, replayed: bool) -> str:
    source = f"{letter.topic}[{letter.topic_partition}]@{letter.topic_offset}" if letter.topic else "-"
    done = "  replayed" if replayed else ""
    return (
        f"[{letter.partition}]@{letter.offset}  {source}  key {letter.key!r}"
        f"  {letter.error_type}: {letter.error_message[:100]!r}{done}"
    )
