"""`steadfaust dlq`: inspect dead letters, and replay, edit or discard them.

Exit status: 0 done, 1 an error, a refusal or a replay that failed again, 3 nothing matched, 4 a job failed or
was stopped, the lane of a dead letter has not answered yet, or a replay still waits.
"""

from __future__ import annotations

import time
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import quote

import msgspec
import typer

from streams.cli import foreign
from streams.cli.options import (
    NOTHING,
    OPTIONS,
    REFUSED,
    UNFINISHED,
    At,
    Json,
    Limit,
    Why,
    by_whom,
    echo,
    echo_pages,
    json_line,
    say,
    takes,
)
from streams.cli.workers import WorkerAddress, find_worker
from streams.control.letters.letter_answers import GroupAnswer, all_groups
from streams.control.letters.letters import FILTERS

app = typer.Typer(help="List, show, replay, edit and discard dead letters.", no_args_is_help=True)
app.add_typer(foreign.app, name="foreign")

LETTERS = "/api/dead-letters"
#: Seconds between two checks of a job's progress.
PAUSE = 0.5
#: Names of outcomes in the results of a job.
OUTCOMES = ("handled", "done", "failed", "refused", "discarded", "waiting", "unsettled")

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", "-w", help=f"NAME=VALUE; may be repeated, and all must match. Names: {', '.join(FILTERS)}."
    ),
]
Ids = Annotated[
    list[str] | None, typer.Argument(help="Ids of dead letters. Default: all that match --where.")
]
Id = Annotated[str, typer.Argument(help="Id of the dead letter.")]
Rate = Annotated[float, typer.Option(help="Maximum operations per second.")]
Job = Annotated[
    str, typer.Option(help="Name for this request. To resume it later, run the command again with its name.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be affected.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the operations to finish.")]
Timeout = Annotated[float, typer.Option(min=0, help="Maximum seconds to wait for the operations to finish.")]
Force = Annotated[bool, typer.Option("--force", help="Include parked dead letters.")]

_OPTIONS = {
    **OPTIONS,
    "why": (Why, ""),
    "where": (Where, None),
    "rate": (Rate, 200.0),
    "job": (Job, ""),
    "timeout": (Timeout, 30.0),
    "no_wait": (NoWait, False),
    "force": (Force, False),
    "dry_run": (DryRun, False),
    "yes": (Yes, False),
}


def _filter(where: list[str] | None) -> dict[str, str]:
    """The query from `--where` options. `older` and `newer` are ages in seconds."""
    pairs = dict(one.partition("=")[::2] for one in where or [])
    if unknown := sorted(pairs.keys() - set(FILTERS)):
        raise typer.BadParameter(
            f"unknown name in --where: {', '.join(unknown)}; use one of {', '.join(FILTERS)}"
        )
    return pairs


@app.command("list")
def list_(
    worker: At = "",
    where: Where = None,
    *,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List dead letters."""
    query = _filter(where)
    pages = find_worker(worker).pages(LETTERS, {**query, "limit": str(min(limit, 500))})
    printed, _ = echo_pages(pages, "letters", _letter_line, limit=limit, as_json=as_json)
    raise typer.Exit(0 if printed else NOTHING)


@app.command()
def groups(
    worker: At = "",
    where: Where = None,
    *,
    as_json: Json = False,
) -> None:
    """Count dead letters by cause: handler, error, line of code (place) and message type."""
    query = _filter(where)
    found = _groups(find_worker(worker), query)
    _print_groups(found, as_json=as_json)
    raise typer.Exit(0 if found else NOTHING)


@app.command()
def watch(
    worker: At = "",
    *,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two counts.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Print the groups of dead letters that grow or shrink, until Ctrl-C."""
    address, before = find_worker(worker), dict[tuple[str, str, str, str], int]()
    while True:
        now = {group.alike: group for group in _groups(address, {})}
        for alike in sorted(now.keys() | before.keys()):
            count, was = now[alike].count if alike in now else 0, before.get(alike, 0)
            if count != was:
                handler, error, place, kind = alike
                fields = {"handler": handler, "error_type": error, "place": place, "message_type": kind}
                line = f"{count:>8} ({count - was:+d})  {handler or '-'}  {error}  {place}  {kind}"
                say(json_line({**fields, "count": count, "change": count - was}) if as_json else line)
        before = {alike: group.count for alike, group in now.items()}
        time.sleep(every)


@app.command()
def show(letter: Id, worker: At = "", *, as_json: Json = False) -> None:
    """Show one dead letter in full: its message decoded, or its bytes in hexadecimal, and its history."""
    shown = find_worker(worker).get(f"{LETTERS}/{letter}")
    if as_json:
        say(json_line(shown))
        return
    for name, value in shown["letter"].items():
        say(f"{name:<14} {value}")
    for name, value in shown["headers"]:
        say(f"header         {name}: {value}")
    say(f"value          {shown['hex'] or json_line(shown['value'])}")
    if claim := shown["claim"]:
        place, kind = f"s3://{claim['bucket']}/{claim['name']}", claim["content_type"] or "unknown type"
        say(f"payload        {place}, {claim['size']:,} bytes of {kind}; {claim['standing']}")
    elif shown["unreadable"]:
        say(f"unreadable     {shown['unreadable']}")
    for event in shown["history"]:
        who, why = event["who"], f" ({event['why']})" if event["why"] else ""
        say(f"history        {event['at']} {who}: {event['operation']}{why}: {event['result']}")
    for line in shown["trace"].splitlines():
        say(f"trace          {line}")


def _many(
    operation: str,
    ids: list[str] | None,
    *,
    worker: str,
    who: str,
    timeout: float,
    no_wait: bool,
    as_json: bool,
    where: list[str] | None = None,
    dry_run: bool = False,
    yes: bool = True,
    **given: Any,
) -> None:
    """Request an operation on the named dead letters, or on all that match, once the user has confirmed
    their number.
    """
    matching = _filter(where)
    if bool(ids) == bool(matching):
        raise typer.BadParameter("name dead letters, or select them with --where")
    address = find_worker(worker)
    timeout = 0.0 if no_wait else timeout
    body = {**given, "dry_run": dry_run, "operation": operation, "who": by_whom(who)}
    if ids:
        ids = list(dict.fromkeys(ids))  # the lane answers once for each dead letter
        job = address.post(f"{LETTERS}/operations", {**body, "letters": ids})
        if dry_run or not timeout:
            _tell(job, as_json=as_json)
        _tell_answers(job, _answers(address, job, ids, timeout), as_json=as_json)
    if not yes and not dry_run:
        trial = {**body, "matching": matching, "dry_run": True}
        found = _wait(address, address.post(f"{LETTERS}/operations", trial))
        if found["state"] != "done":
            _tell(found, as_json=as_json)
        _print_groups([msgspec.convert(group, GroupAnswer) for group in found["groups"]], as_json=False)
        if not found["matched"]:
            raise typer.Exit(NOTHING)
        typer.confirm(f"{operation} {found['matched']} dead letters?", abort=True)
    job = address.post(f"{LETTERS}/operations", {**body, "matching": matching})
    _tell(_wait(address, job, timeout, quiet=as_json), as_json=as_json, settled=bool(timeout))


def _wait(
    worker: WorkerAddress, job: dict[str, Any], timeout: float = 0.0, *, quiet: bool = False
) -> dict[str, Any]:
    """Follow a job to its end, and then its operations for up to `timeout` seconds. Ctrl-C stops the job."""
    name = job["job"]
    try:
        while job["state"] == "running":
            time.sleep(PAUSE)
            job = worker.get(f"{LETTERS}/jobs/{name}")
            if not quiet:
                say(f"job {name}: {_progress(job)}", err=True)
    except KeyboardInterrupt:
        return dict(worker.post(f"{LETTERS}/jobs/{name}/stop", {}))
    until = time.monotonic() + timeout
    while True:
        job = worker.get(f"{LETTERS}/jobs/{name}")
        results = job["results"] or {"unsettled": 0, "waiting": 0}
        if not (results["unsettled"] or results["waiting"]) or time.monotonic() >= until:
            return job
        time.sleep(PAUSE)


def _answers(
    worker: WorkerAddress, job: dict[str, Any], letters: list[str], timeout: float
) -> dict[str, dict[str, Any]]:
    """The answers of the lanes by dead letter, without those that did not come within `timeout` seconds.
    Ctrl-C ends the wait, not the operation.
    """
    found: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + timeout
    query = {"job": job["job"], "operation": job["operation"]}
    while True:
        for letter in letters:
            if letter not in found or found[letter]["outcome"] == "waiting":
                answer = worker.get(f"{LETTERS}/{quote(letter, safe='')}/answer", query)
                if answer["settled"]:
                    found[letter] = answer
        ended = [letter for letter, answer in found.items() if answer["outcome"] != "waiting"]
        if len(ended) == len(set(letters)) or time.monotonic() >= until:
            return found
        time.sleep(PAUSE)


def _tell_answers(job: dict[str, Any], answers: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    """Print the result for each dead letter, and exit with the status for them."""
    if as_json:
        results = {letter: answer["result"] for letter, answer in answers.items()}
        ended = {letter: [answer["outcome"], answer["detail"]] for letter, answer in answers.items()}
        say(json_line({**job, "answers": results, "outcomes": ended}))
    else:
        for letter, answer in answers.items():
            say(f"{job['operation']} of {letter}: {_outcome(answer)}")
    if waiting := job["matched"] - len(answers):
        reason = f"the lanes of {waiting} of {job['matched']} dead letters have not answered yet"
        say(f"error: {reason}; to check again, add --job {job['job']}", err=True)
        raise typer.Exit(UNFINISHED)
    _exit({answer["outcome"] for answer in answers.values()})


def _outcome(answer: dict[str, Any]) -> str:
    match answer["outcome"]:
        case "done":
            return str(answer["result"])
        case "failed":
            return f"failed again: {answer['detail']}"
        case outcome:
            return f"{outcome}: {answer['detail']}" if answer["detail"] else str(outcome)


def _exit(outcomes: set[str]) -> NoReturn:
    if outcomes & {"refused", "failed"}:
        raise typer.Exit(REFUSED)
    raise typer.Exit(UNFINISHED if outcomes & {"waiting", "unsettled"} else 0)


def _progress(job: dict[str, Any]) -> str:
    waits = f", waiting: {job['waits_for']}" if job.get("waits_for") and job["state"] == "running" else ""
    return (
        f"{job['state']}, {job['asked']} requested, {job['matched']} of {job['looked']} matched,"
        f" {job['lane']} of {job['lanes']} lanes{waits}"
    )


def _tell(job: dict[str, Any], *, as_json: bool, settled: bool = False) -> None:
    """Print a job, and exit with the status for it, or with `settled` for the results of its operations."""
    say(json_line(job) if as_json else f"{job['operation']}, job {job['job']}: {_progress(job)}")
    results = job["results"] or {}
    counts = {name: results[name] for name in OUTCOMES if results.get(name)}
    if counts and not as_json:
        say(", ".join(f"{'failed again' if name == 'failed' else name} {n}" for name, n in counts.items()))
        for error, number in results["errors"].items():
            say(f"{number:>8}  {error}")
        if results["why_waiting"]:
            say(f"waiting: {results['why_waiting']}")
    if job["error"]:
        say(f"error: {job['error']}", err=True)
    if job["state"] != "done":
        say(f"to continue, run the same command with --job {job['job']}", err=True)
        raise typer.Exit(UNFINISHED)
    if not job["matched"]:
        raise typer.Exit(NOTHING)
    _exit(set(counts) if settled else set())


@app.command()
@takes("why who worker where rate job timeout no_wait force dry_run yes as_json", _OPTIONS)
def replay(letters: Ids = None, **given: Any) -> None:
    """Replay dead letters: run the failed handler again, before the messages that wait behind them.

    Dead letters of a key keep their original order.
    """
    _many("replay", letters, **given)


@app.command()
@takes("why who worker where rate job timeout no_wait dry_run yes as_json", _OPTIONS)
def discard(letters: Ids = None, **given: Any) -> None:
    """Discard dead letters; `restore` can undo this. Messages that wait behind them continue.

    This also works for a dead letter whose replay waits for a handler that no longer exists.
    """
    _many("discard", letters, **given)


@app.command()
@takes("why who worker job timeout no_wait as_json", _OPTIONS)
def restore(
    letters: Annotated[list[str], typer.Argument(help="Ids of dead letters.")],
    **given: Any,
) -> None:
    """Undo a discard, so that the dead letters can be replayed again."""
    _many("restore", letters, **given)


@app.command()
@takes("why who worker job timeout no_wait force as_json", _OPTIONS)
def edit(
    letter: Id,
    message: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with the new message, in the same form as `value` in the output of `show`."
        ),
    ] = None,
    value: Annotated[
        Path | None, typer.Option(help="File with the new value as bytes, instead of --message.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE; may be repeated. Replaces all headers.")
    ] = None,
    **given: Any,
) -> None:
    """Replay a dead letter with changed content, under a new id.

    Workers refuse this unless STEADFAUST_EDIT_DEAD_LETTERS is true.
    """
    if message is not None:
        given["message"] = msgspec.json.decode(message.read_bytes())
    if value is not None:
        given["value"] = b64encode(value.read_bytes()).decode()
    if header:
        pairs = [one.partition("=") for one in header]
        given["headers"] = [(name, b64encode(text.encode()).decode()) for name, _, text in pairs]
    _many("edit", [letter], **given)


# -- printing ---------------------------------------------------------------------------------------------


def _groups(worker: WorkerAddress, query: dict[str, str]) -> list[GroupAnswer]:
    found: list[GroupAnswer] = []
    for page in worker.pages(f"{LETTERS}/groups", query):
        found = all_groups([*found, *(msgspec.convert(group, GroupAnswer) for group in page["groups"])])
    return found


def _print_groups(found: list[GroupAnswer], *, as_json: bool) -> None:
    for group in found:
        echo(group, _group_line, as_json=as_json)


def _group_line(group: GroupAnswer) -> str:
    return (
        f"{group.count:>8}  {group.handler or '-'}  {group.error_type}  {group.place or '-'}"
        f"  {group.message_type}  {group.oldest} .. {group.newest}  {group.example}"
    )


def _letter_line(letter: dict[str, Any]) -> str:
    where = f"{letter['topic']}[{letter['partition']}]@{letter['offset']}"
    holds = " blocks others" if letter["holds"] else ""
    gone = " (gone)" if letter.get("gone") else ""
    return (
        f"{letter['id']}  {letter['failed_at']}  {letter['state']}{holds}  {letter['handler'] or '-'}{gone}"
        f"  {where}  key {letter['key']!r}  {letter['error_type']}: {letter['error_message'][:100]!r}"
    )
