"""`steadfaust handler`: pause, drain and resume handlers, and show their state.

Exit status: 0 done, 1 an error, 2 no such handler, 4 not yet in effect in all partitions.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer

from streams.cli.options import OPTIONS, UNFINISHED, At, Json, by_whom, json_line, say, takes
from streams.cli.workers import WorkerAddress, find_worker
from streams.control.handlers.awaited_schemas import warning
from streams.control.handlers.handler_answers import RUNNING, HandlerAnswer, HandlersAnswer
from streams.model.operations import HandlerCommand, PauseState

app = typer.Typer(help="List, pause, drain and resume handlers.", no_args_is_help=True)

HANDLERS = "/api/handlers"
#: Seconds between two checks whether a command is in effect.
PAUSE = 0.5
#: States in which a command is in effect.
_HOLDS = {
    HandlerCommand.PAUSE: (PauseState.PAUSED, PauseState.DRAINED),
    HandlerCommand.DRAIN: (PauseState.DRAINED,),
    HandlerCommand.RESUME: (RUNNING,),
}

Name = Annotated[str, typer.Argument(help="Name of the handler, as `list` shows it.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Do not wait until all partitions have applied the command.")
]
_OPTIONS = {**OPTIONS, "no_wait": (NoWait, False)}
_OPERATION = "why who worker timeout no_wait as_json"


@app.command("list")
def list_(worker: At = "", *, as_json: Json = False) -> None:
    """List all handlers and their states."""
    found = _ask(find_worker(worker), whole=True)
    for handler in found.handlers:
        say(json_line(_plain(handler)) if as_json else _handler_line(handler))
    _tell_left_out(found)


@app.command()
def status(name: Name, worker: At = "", *, as_json: Json = False) -> None:
    """Show a handler's state, who paused it and why, and how many messages wait for each reason."""
    address = find_worker(worker)
    _check_known(address, name)
    found = _ask(address, name, whole=True)
    handler = _only(found, name)
    if as_json:
        say(json_line(_plain(handler)))
        _tell_left_out(found)
        return
    say(_handler_line(handler))
    more = "" if handler.counted_all else ", and more"
    waiting = ", ".join(f"{count} {reason}" for reason, count in handler.waiting.items()) or "none"
    breakers = ", ".join(f"{state} in {count}" for state, count in handler.breakers.items())
    say(f"waiting messages    {waiting}{more}, of {handler.keys} keys")
    say(f"running attempts    {handler.attempts}")
    say(f"breaker, by lane    {breakers}")
    for each in handler.schemas:
        say(f"unknown schema      {warning(each)}")
    _tell_left_out(found)


@app.command()
@takes(_OPERATION, _OPTIONS)
def pause(name: Name, **given: Any) -> None:
    """Pause a handler: its messages, retries and replays wait until it resumes. Other handlers continue."""
    _command(HandlerCommand.PAUSE, name, **given)


@app.command()
@takes(_OPERATION, _OPTIONS, timeout=600.0)
def drain(name: Name, **given: Any) -> None:
    """Drain a handler: keep new messages waiting, handle those that wait already, then pause it."""
    _command(HandlerCommand.DRAIN, name, **given)


@app.command()
@takes(_OPERATION, _OPTIONS)
def resume(name: Name, **given: Any) -> None:
    """Resume a handler: its waiting messages run immediately, in order within each key."""
    _command(HandlerCommand.RESUME, name, **given)


def _command(
    kind: HandlerCommand,
    name: str,
    *,
    why: str,
    who: str,
    worker: str,
    timeout: float,
    no_wait: bool,
    as_json: bool,
) -> None:
    timeout = 0 if no_wait else timeout
    address = find_worker(worker)
    _check_known(address, name)
    body = {"operation": str(kind), "who": by_whom(who), "why": why}
    address.post(f"{HANDLERS}/{name}/operations", body)
    found, holds = _wait(address, kind, name, timeout, quiet=as_json)
    handler = _only(found, name)
    if as_json:
        done = {"handler": name, "operation": str(kind), "holds_in": holds, "of": found.partitions}
        say(json_line({**done, "state": handler.state}))
    else:
        in_effect = f"in effect in {holds} of {found.partitions} partitions"
        say(f"{kind} of {name} is {in_effect}: {handler.state}")
    if kind is not HandlerCommand.RESUME and not as_json:
        say(
            f"up to {found.max_waiting_bytes >> 20} MiB of messages can wait per key; further ones become"
            " dead letters (QueueFull), so pause for minutes or hours"
        )
    _tell_left_out(found)
    raise typer.Exit(0 if holds == found.partitions or not timeout else UNFINISHED)


def _wait(
    address: WorkerAddress, kind: HandlerCommand, name: str, timeout: float, *, quiet: bool
) -> tuple[HandlersAnswer, int]:
    """Wait until a command is in effect in all partitions, for up to `timeout` seconds. Returns in how many
    it is. Ctrl-C ends the wait, not the command.
    """
    until = time.monotonic() + timeout
    while True:
        found = _ask(address)
        handler = _only(found, name)
        holds = sum(handler.partitions.get(state, 0) for state in _HOLDS[kind])
        if holds == found.partitions or time.monotonic() >= until:
            return found, holds
        if not quiet:
            waiting = f"; messages of {handler.keys} keys are waiting" if kind is HandlerCommand.DRAIN else ""
            say(f"{name}: {handler.state}{waiting}", err=True)
        time.sleep(PAUSE)


def _ask(worker: WorkerAddress, name: str = "", *, whole: bool = False) -> HandlersAnswer:
    """The handlers' state. `whole` waits some seconds for lanes that do not answer."""
    ask = worker.whole if whole else worker.get
    return msgspec.convert(ask(f"{HANDLERS}/{name}" if name else HANDLERS), HandlersAnswer, strict=False)


def _check_known(worker: WorkerAddress, name: str) -> None:
    names = [handler.handler for handler in _ask(worker).handlers]
    if name not in names:
        raise typer.BadParameter(f"there is no handler {name!r}; the handlers are {', '.join(names)}")


def _only(found: HandlersAnswer, name: str) -> HandlerAnswer:
    return next(handler for handler in found.handlers if handler.handler == name)


# -- printing ---------------------------------------------------------------------------------------------


def _handler_line(handler: HandlerAnswer) -> str:
    by = f"  since {handler.since} by {handler.who}: {handler.why}" if handler.since else ""
    open_ = [state for state in handler.breakers if state != "closed"]
    breaker = f"  breaker {'/'.join(open_)}" if open_ else ""
    waiting = f"  {handler.keys} keys waiting" if handler.keys else ""
    unknown = ", ".join(sorted({each.schema for each in handler.schemas}))
    schemas = f"  unknown schema {unknown}" if unknown else ""
    return f"{handler.handler:<28} {handler.state}{by}{waiting}{breaker}{schemas}"


def _plain(handler: HandlerAnswer) -> dict[str, Any]:
    return {**msgspec.to_builtins(handler), "state": handler.state}


def _tell_left_out(found: HandlersAnswer) -> None:
    for lane, why in found.left_out.items():
        say(f"lane {lane} has not answered: {why}", err=True)
