"""`steadfaust trace`: what happened to a key.

Exit status: 0 found, 1 an error, 3 nothing matched, 4 the answer is incomplete, because the search reached a
limit or the owner of the key's lane did not answer.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streams.cli.options import NOTHING, UNFINISHED, At, Json, json_line, say
from streams.cli.workers import find_worker
from streams.control.base.asked import as_asked


def trace(
    key: Annotated[str, typer.Argument(help="Key, saga id, message id or correlation id.")],
    since: Annotated[
        str, typer.Option(help="How far to look back: 90s, 10m, 2h, 1d, or a time (RFC 3339).")
    ] = "",
    worker: At = "",
    *,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--everywhere", help="Search all partitions, and include messages with the same correlation id."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what happened to a key: all of its messages in order of time, and what is still waiting."""
    query = {"q": as_asked(key), "since": since, "everywhere": "1" if everywhere else ""}
    found = find_worker(worker).get("/api/search", {name: text for name, text in query.items() if text})
    if as_json:
        say(json_line(found))
    else:
        _print(found)
    if found["stopped"] or found["held"] is None:
        raise typer.Exit(UNFINISHED)
    held = found["held"]
    things = any(held[name] for name in ("sagas", "tables", "letters", "waiting", "timers"))
    raise typer.Exit(0 if found["entries"] or things else NOTHING)


def _print(found: dict[str, Any]) -> None:
    for entry in found["entries"]:
        say(_entry_line(entry))
    for line in _held_lines(found["held"] or {}):
        say(line)
    looked = f"searched {found['looked']} records since {found['since']} in {found['partitions']} partitions"
    if found["stopped"]:
        looked += f"; complete only until {found['until']}: {found['stopped']}"
    if found["missing"]:
        looked += f"; rows and waiting messages are missing: {found['missing']}"
    if any(entry["handlers"] for entry in found["entries"]):
        looked += "; handlers as they are wired today"
    if found["longer"]:
        looked += f"; use --since {found['longer']} to look further back"
    say(looked, err=True)


def _entry_line(entry: dict[str, Any]) -> str:
    cause = f"  caused by {entry['cause']}" if entry["cause"] else ""
    handlers = f"  {', '.join(entry['handlers'])}" if entry["handlers"] else ""
    failure = " ".join(f"{name}={text}" for name, text in entry["failure"].items())
    value = entry["reference"] or entry["unreadable"] or json_line(entry["value"])
    what = f"{entry['type']} ({entry['kind']}){handlers}{cause}"
    return (
        f"{entry['number']:>4}  +{entry['after_ms']} ms  {what}  {failure + '  ' if failure else ''}{value}"
    )


def _held_lines(held: dict[str, Any]) -> list[str]:
    return [
        *(f"saga {each['id']}  {each['status']}  {each['reason']}" for each in held.get("sagas", [])),
        *(
            f"waiting {each['handler']}  {each['reason']}  {_due(each)}  {each['attempts']} attempts"
            for each in held.get("waiting", [])
        ),
        *(
            f"timer {each['name']} of {each['handler']}  {each['topic']}  {_due(each)}"
            for each in held.get("timers", [])
        ),
        *(
            f"dead letter {each['id']}  {each['error_type']}: {each['error_message']}"
            for each in held.get("letters", [])
        ),
    ]


def _due(each: dict[str, Any]) -> str:
    return "no due time" if each["due_in"] is None else f"due in {each['due_in']:g} s"
