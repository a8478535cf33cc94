"""`steadfaust saga`: inspect sagas, and repair those that wait for an operator.

Exit status: 0 done, 1 an error or a refusal, 3 nothing matched, 4 the operation has no result yet, or not all
lanes have answered.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import msgspec
import typer

from streams.cli.options import (
    NOTHING,
    OPTIONS,
    REFUSED,
    UNFINISHED,
    At,
    Json,
    Limit,
    by_whom,
    echo_pages,
    json_line,
    say,
    takes,
)
from streams.cli.saga_check import check
from streams.cli.workers import WorkerAddress, find_worker
from streams.control.base.asked import address_of
from streams.control.sagas.saga_answers import SagaShown
from streams.saga.repairs import refusal
from streams.units import DAY

app = typer.Typer(help="List, show and repair sagas, and check their definitions.", no_args_is_help=True)
app.command("check")(check)

SAGAS = "/api/sagas"
#: Seconds between two checks for the result of an operation.
PAUSE = 0.2
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}

Ident = Annotated[str, typer.Argument(metavar="SAGA", help="Id of the saga, as `list` shows it: NAME:KEY.")]
StepName = Annotated[
    str, typer.Argument(metavar="[STEP]", help="Name of the step. Default: the only step that waits.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the result.")]
_OPTIONS = {**OPTIONS, "step": (StepName, ""), "no_wait": (NoWait, False)}
_FOR_STEP = "why step who worker timeout no_wait as_json"


@app.command("list")
def list_(
    worker: At = "",
    status: Annotated[str, typer.Option(help="Only sagas with this status, such as failed.")] = "",
    older_than: Annotated[str, typer.Option(help="Only sagas at least this old: 90s, 10m, 2h, 1d.")] = "",
    *,
    stalled: Annotated[
        bool, typer.Option("--stalled", help="Only sagas that take longer than STEADFAUST_SAGA_LIMIT.")
    ] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List sagas, and orders that run as a choreography."""
    query = {"status": status, "older": _seconds(older_than), "stalled": "1" if stalled else ""}
    query = {name: value for name, value in query.items() if value}
    pages = find_worker(worker).pages(SAGAS, {**query, "limit": str(min(limit, 500))})
    printed, left_out = echo_pages(pages, "sagas", _saga_line, limit=limit, as_json=as_json)
    for lane, why in left_out.items():
        say(f"lane {lane} has not answered: {why}", err=True)
    raise typer.Exit(UNFINISHED if left_out else 0 if printed else NOTHING)


@app.command()
def show(saga: Ident, worker: At = "", *, as_json: Json = False) -> None:
    """Show a saga's timeline: the state of each step, then its events."""
    shown = _ask(find_worker(worker), saga)
    if as_json:
        say(json_line(shown))
        return
    say(_saga_line(shown["saga"]))
    say(f"began {shown['saga']['created_at']}, last change {shown['saga']['changed_at']}")
    for step in shown["steps"]:
        say(_step_line(step))
    for entry in shown["log"]:
        say(_entry_line(entry))
    for text in msgspec.convert(shown, SagaShown, strict=False).advice:
        say(text)
    if shown["entries"] > len(shown["log"]):
        say(f"the last {len(shown['log'])} of {shown['entries']} entries; the transitions topic has them all")


@app.command()
@takes(_FOR_STEP, _OPTIONS)
def retry(saga: Ident, **given: Any) -> None:
    """Retry a step or a compensation that waits for an operator."""
    _operate("retry", saga, **given)


@app.command()
@takes(_FOR_STEP, _OPTIONS)
def skip(saga: Ident, **given: Any) -> None:
    """Skip a step or a compensation that waits for an operator."""
    _operate("skip", saga, **given)


@app.command()
@takes(_FOR_STEP, _OPTIONS)
def done(saga: Ident, **given: Any) -> None:
    """Mark a step or a compensation that waits for an operator as done, after you did it by hand."""
    _operate("done", saga, **given)


@app.command()
@takes("why who worker timeout no_wait as_json", _OPTIONS)
def cancel(saga: Ident, **given: Any) -> None:
    """Cancel a saga that has not passed its pivot: steps that ran, or may have run, are compensated."""
    _operate("cancel", saga, **given)


def _operate(
    operation: str,
    saga: str,
    *,
    step: str = "",
    why: str,
    who: str,
    worker: str,
    timeout: float,
    no_wait: bool,
    as_json: bool,
) -> None:
    timeout = 0 if no_wait else timeout
    address = find_worker(worker)
    body = {"operation": operation, "step": step, "who": by_whom(who), "why": why}
    accepted = address.post(address_of(SAGAS, "saga", saga, "/operations"), body)
    entry, shown = _wait(address, accepted, timeout) if timeout else (None, None)
    if as_json:
        say(json_line({**accepted, "settled": entry, "saga": shown["saga"] if shown else saga}))
    elif shown is not None and entry is not None:
        say(_entry_line(entry))
        say(_saga_line(shown["saga"]))
    else:
        say(f"sent {operation} of {saga}; `steadfaust saga show {saga}` shows its result")
    if entry is not None and entry["detail"].startswith(refusal(operation)):
        raise typer.Exit(REFUSED)
    raise typer.Exit(0 if entry is not None or not timeout else UNFINISHED)


def _wait(worker: WorkerAddress, accepted: dict[str, Any], timeout: float) -> tuple[Any, Any]:
    """Wait for the log entry with the result of an operation. Returns it, or None, and the saga."""
    until = time.monotonic() + timeout
    while True:
        shown = _ask(worker, accepted["saga"])
        for entry in shown["log"]:
            if entry["number"] > accepted["entries"] and accepted["said"] in entry["detail"]:
                return entry, shown
        if time.monotonic() >= until:
            return None, shown
        time.sleep(PAUSE)


def _ask(worker: WorkerAddress, saga: str) -> Any:
    return worker.get(address_of(SAGAS, "saga", saga))


def _seconds(age: str) -> str:
    """An age in seconds, or an empty string if none is given."""
    if not age:
        return ""
    found = _AGE.fullmatch(age)
    if found is None:
        raise typer.BadParameter(f"{age!r} is not an age: use the form 90s, 10m, 2h or 1d")
    return str(float(found[1]) * _UNITS[found[2]])


# -- printing ---------------------------------------------------------------------------------------------


def _saga_line(saga: dict[str, Any]) -> str:
    stalled = " stalled" if saga["stalled"] else ""
    waits = f"  waits for an operator: {', '.join(saga['waits_for'])}" if saga["waits_for"] else ""
    pending = f"  pending: {', '.join(saga['pending'])}" if saga["pending"] and not waits else ""
    reason = f"  {saga['reason']}" if saga["reason"] else ""
    state = f"{saga['id']}  {saga['way']}  {saga['status']}{stalled}"
    blocked = f"  waits for another version: {saga['blocked']}" if saga.get("blocked") else ""
    return f"{state}  {saga['elapsed']:g} s{reason}{waits}{pending}{blocked}"


def _step_line(step: dict[str, Any]) -> str:
    times = " .. ".join(time for time in (step["began_at"], step["ended_at"]) if time)
    attempts = f"  {step['attempts']} commands" if step["attempts"] > 1 else ""
    error = f"  {step['error']}" if step["error"] else ""
    return f"step   {step['name']:<32} {step['status']:<12} {times}{attempts}{error}"


def _entry_line(entry: dict[str, Any]) -> str:
    change = (
        entry["after"]
        if entry["before"] in ("", entry["after"])
        else f"{entry['before']} -> {entry['after']}"
    )
    subject = f"{entry['step']} " if entry["step"] else ""
    detail = f": {entry['detail']}" if entry["detail"] else ""
    return f"{entry['number']:>5}  {entry['time']}  {subject}{change}{detail}"
