"""Why the first message of a queue waits now, and what ends that.

A queue keeps why its head began to wait. Meanwhile its handler may have been paused, or its circuit breaker
may have opened: that is the cause then.
"""

from __future__ import annotations

from typing import NamedTuple

from streams.engine.staging.keys import prefix_in
from streams.engine.waiting.dead_letters.row import Summary
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import Reason, WaitingMessage, WaitingQueue
from streams.errors import BlobsUnavailable
from streams.model.application import Application
from streams.model.envelope import FINGERPRINT, rfc3339
from streams.model.operations import HandlerPause
from streams.model.policy.breaker import BreakerState

#: Reasons for which a message would be tried, if its handler could run.
_RUNS = (Reason.RETRY, Reason.REPLAY, Reason.BREAKER, Reason.PAUSED, Reason.NEXT)
_OBJECT = f"{BlobsUnavailable.__name__}:"
_NOT_WRITTEN = f"{_OBJECT} cannot write "


class Cause(NamedTuple):
    """Why a message waits; see `WaitingAnswer`. `due` in epoch seconds; 0: no time is known."""

    reason: str
    why: str
    until: str
    due: float = 0.0


def kept_for(reason: str, gate: HandlerGate | None) -> tuple[str, ...]:
    """The reasons that queues may keep whose first message waits for `reason`, for a handler in a lane."""
    match reason:
        case "paused" if gate is not None and gate.shut:
            return _RUNS
        case "breaker" if gate is not None and gate.breaker.state is not BreakerState.CLOSED:
            return _RUNS
        case "next":
            return Reason.NEXT, Reason.PAUSED, Reason.BREAKER
        case "object":
            return Reason.RETRY, Reason.BREAKER
        case "version":
            return (Reason.RETRY,)
        case "gone" | "":
            return (*Reason, "unreadable")
        case _:
            return (reason,)


def cause_of(
    app: Application,
    handler: str,
    local: bytes,
    queue: WaitingQueue,
    message: WaitingMessage,
    gate: HandlerGate | None,
    letter: Summary | None,
) -> Cause:
    """The cause of a queue, by its local key. `message` is the first one that waits, `letter` the dead letter
    before it; `gate` is None while the lane is not open.
    """
    due = queue.due_ms / 1000
    if queue.reason is Reason.DEAD:
        error = "" if letter is None else f": {letter.error_type}: {letter.error_message}"
        return Cause(
            "dead", f"an earlier message of its key is a dead letter{error}", "the dead letter is settled"
        )
    if app.taker(handler, message.topic) is None:
        lacks = f"takes {message.topic} no more" if handler in app.handlers else "is gone: was it renamed?"
        return Cause("gone", f"the handler {lacks}", "a worker has such a handler")
    if queue.reason is Reason.SCHEMA:
        schema = (dict(message.headers).get(FINGERPRINT) or b"?").decode("utf-8", "backslashreplace")
        why = f"no worker has announced the schema {schema}"
        return Cause("schema", why, "a worker announces it, else it is a dead letter", due)
    if gate is None and queue.reason in (Reason.PAUSED, Reason.BREAKER):
        return Cause(str(queue.reason), "it was so before its lane closed", "its lane opens")
    if gate is not None and (held := _held_by(gate, local, queue)) is not None:
        return held
    failed = _failed(app, handler, queue) + _uncounted(app, handler, gate, queue)
    place = (message.topic, message.partition, message.offset)
    if gate is not None and local in gate.not_yet:
        why = f"it is for another version of the application: {gate.not_yet[local]}"
        return Cause("version", why, "a worker of that version takes it", due)
    if queue.reason in (Reason.RETRY, Reason.BREAKER) and queue.error.startswith(_OBJECT):
        what = "a payload that it sends cannot be written"
        if not queue.error.startswith(_NOT_WRITTEN):
            what = "its payload cannot be fetched"
        known = None if gate is None else gate.unavailable.get(place)
        error = queue.error if known is None else known.error  # of the stored one the end may be cut off
        return Cause("object", f"{what}: {error}", "it is tried again", due)
    if queue.reason is Reason.RETRY:
        return Cause("retry", failed, "it is tried again", due)
    if queue.reason is Reason.REPLAY:
        return Cause("replay", "an operator has it replayed", "it has its turn")
    return Cause("next", failed if queue.error else "nothing holds it back", "it has its turn")


def _held_by(gate: HandlerGate, local: bytes, queue: WaitingQueue) -> Cause | None:
    """Why the handler does not run now; None: it runs."""
    pause = gate.pauses.get(prefix_in(local))
    if pause is not None and (prefix_in(local) in gate.shut or queue.reason is Reason.PAUSED):
        return Cause("paused", pause_text(pause), "the handler is resumed")
    if gate.breaker.state is BreakerState.CLOSED:
        return None
    why = f"the circuit breaker is open since {rfc3339(gate.breaker.since)}"
    error = queue.error or (gate.failures[-1].error if gate.failures else "")
    due = max(gate.breaker.allowed_from, queue.due_ms / 1000)
    return Cause("breaker", f"{why}: {error}" if error else why, "a test attempt succeeds: the next one", due)


def pause_text(pause: HandlerPause) -> str:
    """Who has paused a handler, since when and why."""
    return f"{pause.state} by {pause.who} since {rfc3339(pause.since_ms / 1000)}: {pause.why}"


def _failed(app: Application, handler: str, queue: WaitingQueue) -> str:
    most = app.handlers[handler].retry.max_attempts
    tried = f"attempt {queue.attempts} of {most} failed" if queue.attempts else "an attempt failed"
    return f"{tried}: {queue.error}" if queue.error else tried


def _uncounted(app: Application, handler: str, gate: HandlerGate | None, queue: WaitingQueue) -> str:
    """Add that further tries are not counted, because the outside seems to be away (docs/adr/0016)."""
    policy, patience = app.handlers[handler].retry, app.lane_options.outage_patience
    late = policy.delays and queue.attempts > policy.immediate and queue.tried_ms
    if gate is None or not late or not patience or gate.last_success * 1000 > queue.tried_ms:
        return ""
    return (
        f"; if the error may pass, tries do not count while no call of {handler} succeeds, for"
        f" {patience / 3600:g} h from when the message began to wait"
    )
