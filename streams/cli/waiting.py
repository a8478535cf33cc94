"""`steadfaust waiting`: which messages wait, for what, and until when.

Exit status: 0 some messages wait; 1 an error; 3 none waits; 4 not all lanes have answered.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streams.cli.options import NOTHING, UNFINISHED, At, Json, Limit, echo_pages, say
from streams.cli.workers import find_worker
from streams.control.base.asked import EMPTY, as_asked
from streams.control.waiting.waiting_answers import REASONS, WAITING_PATH


def waiting(
    worker: At = "",
    handler: Annotated[str, typer.Option(help="Only messages waiting for this handler.")] = "",
    reason: Annotated[
        str,
        typer.Option(
            help=f"Only messages waiting for this reason: {', '.join(REASONS)}. docs/operating.md explains"
            " them."
        ),
    ] = "",
    key: Annotated[
        str | None,
        typer.Option(
            help="All waiting messages of this key. Otherwise only the first of each queue is listed."
        ),
    ] = None,
    limit: Limit = 50,
    *,
    as_json: Json = False,
) -> None:
    """List waiting messages, oldest first: why each one waits, until when, and how many wait behind it."""
    if reason and reason not in REASONS:
        raise typer.BadParameter(f"unknown --reason {reason}: use one of {', '.join(REASONS)}")
    asked = "" if key is None else as_asked(key)
    given = {"handler": handler, "reason": reason, "key": asked, "limit": str(min(limit, 500))}
    query = {name: text for name, text in given.items() if text}
    pages = (
        {**page, "left_out": {**page["unsorted"], **page["left_out"]}}
        for page in find_worker(worker).pages(WAITING_PATH, query)
    )
    printed, incomplete = echo_pages(pages, "waiting", _line, limit=limit, as_json=as_json)
    for lane, why in incomplete.items():
        say(f"lane {lane} is incomplete: {why}", err=True)
    raise typer.Exit(UNFINISHED if incomplete else 0 if printed else NOTHING)


def _line(each: dict[str, Any]) -> str:
    due = f" ({each['due']})" if each["due"] else ""
    behind = f"  {each['behind']} behind it" if each["behind"] else ""
    tries = f"  {each['attempts']} attempts" if each["attempts"] else ""
    what = f"{each['since'] or '-':<24}  {each['key'] or EMPTY}  {each['type']} for {each['handler']}"
    return f"{what}  {each['reason']}: {each['why']}; until {each['until']}{due}{tries}{behind}"
