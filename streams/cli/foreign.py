"""`steadfaust dlq foreign`: dead letter topics of Spring Kafka, Kafka Streams and Kafka Connect.

It needs brokers, but no worker. Exit status: 0 done, 1 an error, 3 nothing matched, 4 a replay did not
finish: run the same command again to continue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Annotated, Any

import typer

from streams.cli.options import NOTHING, UNFINISHED, Json, Limit, Who, by_whom, echo, json_line, say
from streams.engine.waiting.dead_letters.foreign import FILTERS, ForeignLetter
from streams.errors import Fenced, TransactionFailed
from streams.settings import Settings

app = typer.Typer(
    help="List and replay dead letters of Spring Kafka, Kafka Streams and Kafka Connect.",
    no_args_is_help=True,
)

Letters = Annotated[str, typer.Argument(help="Topic with the dead letters.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help=f"NAME=VALUE; may be repeated, and all must match. Names: {', '.join(FILTERS)}; docs/redrive.md"
        " explains them.",
    ),
]
Why = Annotated[str, typer.Option("--why", help="Reason, recorded in the topic of --log.")]
Log = Annotated[str, typer.Option("--log", help="Topic that records replays.")]
LOG = "steadfaust.redriven"


@app.command("list")
def list_(
    letters: Letters, where: Where = None, log: Log = LOG, *, limit: Limit = 50, as_json: Json = False
) -> None:
    """List dead letters: where each failed, with which error, and whether it was replayed."""

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
    """Count dead letters by topic, error, and group or connector, and how many of them were replayed."""
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
    to: Annotated[str, typer.Option(help="Topic to write to. Default: the topic each one came from.")] = "",
    most: Annotated[int, typer.Option(min=0, help="Maximum number of dead letters; 0: all that match.")] = 0,
    rate: Annotated[float, typer.Option(min=0, help="Maximum dead letters per second; 0: no limit.")] = 200.0,
    drop_header: Annotated[
        list[str] | None,
        typer.Option(help="Header to leave out, or a prefix such as `x-*`; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be replayed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Write dead letters back to the topics that they came from.

    Headers about the failure or about replication are not copied. A deadline that has passed is not copied
    either. Each dead letter is replayed once: if the command is stopped or killed, run it again to continue.
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
        typer.confirm(f"replay {min(left, most) if most else left} dead letters?", abort=True)
    redrive = _redrive(letters, log, where, **given)
    problem = ""
    try:
        asyncio.run(
            redrive.replay(lambda each: None if as_json else say(f"{each.replayed} replayed", err=True))
        )
    except (Fenced, TransactionFailed) as error:
        problem = f"another replay of {letters} has started" if isinstance(error, Fenced) else str(error)
    done = redrive.progress
    names = ("looked", "matched", "before", "replayed", "homeless", "with_id")
    row: dict[str, Any] = {name: getattr(done, name) for name in names}
    row["dropped_headers"] = dict(sorted(done.dropped.items()))
    line = f"{done.replayed} replayed, {done.before} already before; {done.matched} of {done.looked} matched"
    say(json_line(row) if as_json else line)
    _print_headers(done, to)
    if done.homeless:
        say(f"{done.homeless} do not name the topic that they came from: give one with --to", err=True)
    if problem:
        say(f"error: {problem}; run the same command again to continue", err=True)
        raise typer.Exit(UNFINISHED)
    raise typer.Exit(0 if done.replayed else NOTHING)


@app.command("log")
def log_(letters: Letters, log: Log = LOG, *, as_json: Json = False) -> None:
    """Show who replayed which dead letter, when and why."""
    found = asyncio.run(_redrive(letters, log, None).log())
    for entry in found:
        echo(entry, _log_line, as_json=as_json)
    raise typer.Exit(0 if found else NOTHING)


def _redrive(letters: str, log: str, where: list[str] | None, **given: Any) -> Any:
    from streams.host.redrive import Redrive, RedrivePlan  # takes a second to load

    pairs = dict(one.partition("=")[::2] for one in where or [])
    if unknown := sorted(pairs.keys() - FILTERS.keys()):
        raise typer.BadParameter(
            f"unknown name in --where: {', '.join(unknown)}; use one of {', '.join(FILTERS)}"
        )
    settings = Settings.read()
    plan = RedrivePlan(letters=letters, log=log, where=pairs, **given)
    return Redrive(settings.brokers(), plan, max_record=settings.max_message_bytes)


async def _grouped(
    redrive: Any, *, count_headers: bool = False
) -> dict[tuple[str, str, str, str], tuple[int, int]]:
    """By cause, how many dead letters there are, and how many of them were replayed."""
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
    """Print the headers that replays leave out, and warn about ids that may have been handled already."""
    if progress.dropped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(progress.dropped.items()))
        say(f"headers left out of replays: {names}", err=True)
    if progress.with_id:
        where = to or "the topic"
        have = f"warning: {progress.with_id} have a ce_id"
        known = "an application that has already handled that id drops the replay as a duplicate"
        say(f"{have}: {known}. Check who reads {where}; see docs/redrive.md", err=True)


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
