"""Decide after a failed attempt: again at once, later, or the end of the message (docs/adr/0009).

`policy.retry` decides, `failed` applies the decision: one `match` has all ends. Times are epoch seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from streams.dead_letters.record import message_bytes
from streams.errors import DataError, NotYet, RowSchemaUnknown, RowUnreadable, text_of
from streams.model.envelope import rfc3339
from streams.policy.retry import (
    Decision,
    Expired,
    FailureKind,
    GiveUp,
    Later,
    PutOff,
    TryAgain,
    classify,
    decide,
)
from streams.ports import TP, Outgoing
from streams.retry.gate import Failure, HandlerGate
from streams.retry.queue import Reason, ms
from streams.retry.queue_changes import error_text
from streams.retry.waiting import CannotWait, Waiting
from streams.staging.arrival import Arrival, Attempt
from streams.staging.keys import name_in

log = structlog.get_logger(__name__)

#: Pause before a message is tried again that needs another version of the application, in seconds.
NOT_YET_PAUSE = 30.0


class WaitForVersion(NamedTuple):
    """A decision: another version of the application can handle the message. `soon`: after a moment."""

    delay: float
    soon: bool


class ProbeFailed(NamedTuple):
    """A decision: the outside is still away, and the message is not to blame. It waits for the breaker."""


#: Names of decisions in logs and metrics; others have those of their classes.
_NAMES: dict[type, str] = {WaitForVersion: "NotYet", ProbeFailed: "probe failed"}


def failed(waiting: Waiting, attempt: Attempt, error: Exception, now: float) -> bool:
    """Decide what follows a failed attempt. True: the handler tries again at once, with a new permit; else
    the message waits, or has ended.
    """
    gate = waiting.gates[attempt.handler.name]
    decision, error = _decided(waiting, attempt, error, now)
    reason, due = Reason.RETRY, now
    match decision:
        case GiveUp() | Expired():
            give_up(waiting, attempt, error, now)
            return False
        case TryAgain():
            held = attempt.arrival.entry.prefix in gate.shut
            permit = None if held else gate.breaker.acquire(now)
            if permit is not None:
                attempt.permit = permit
                gate.retried(0)
                return True
            reason = Reason.PAUSED if held else Reason.BREAKER
        case ProbeFailed():
            reason = Reason.BREAKER
        case WaitForVersion():
            due = now + decision.delay
        case PutOff() | Later():
            due = decision.due
    if isinstance(decision, WaitForVersion | ProbeFailed | PutOff):
        attempt.attempts -= 1  # the message is not to blame
    if not (local := wait_or_give_up(waiting, attempt, reason, due, now, error=error)):
        return False
    if isinstance(decision, Later):
        waiting.staging.counters.retries += 1
        gate.retried(decision.tier)
        mirror_to_retry_topic(attempt, error, decision)
    elif isinstance(decision, WaitForVersion) and not decision.soon:
        gate.not_yet[local] = text_of(error)
    return False


def wait_or_give_up(
    waiting: Waiting,
    attempt: Attempt,
    reason: Reason,
    due: float,
    now: float,
    *,
    error: Exception | None = None,
    local: bytes = b"",
) -> bytes:
    """Let a message wait, as `Waiting.wait` has it, or give it up if it has no room. Returns the local key of
    its queue; empty: it was given up.
    """
    try:
        return waiting.wait(attempt, reason, due, now, error=error, local=local)
    except CannotWait as full:
        give_up(waiting, attempt, full, now)
        return b""


def give_up(waiting: Waiting, attempt: Attempt, error: Exception, now: float) -> None:
    """End a message with a failure reply of its handler, or as a dead letter. The next of its ordering key
    has its turn; where the handler's policy holds it back, after an operator has settled the letter. No queue
    is held by a message that had no room to wait: `error` is CannotWait.
    """
    may_hold, may_reply = attempt.handler.retry.hold_while_dead, True
    if isinstance(error, CannotWait):
        may_hold, may_reply, error = False, error.may_reply, error.why
    answered, holds = may_reply and _is_answered(waiting, attempt, error, now), b""
    if may_hold and not answered:
        holds = waiting.hold(attempt, now)
    if not holds:
        waiting.leave(attempt, now)
    if not answered:
        waiting.letters.give_up(attempt, error, now, holds=name_in(holds))


def _decided(
    waiting: Waiting, attempt: Attempt, error: Exception, now: float
) -> tuple[Decision | WaitForVersion | ProbeFailed, Exception]:
    """Decide after a failure: the decision, and the error for it. The breaker counts the failure."""
    arrival, policy = attempt.arrival, attempt.handler.retry
    gate, patience = waiting.gates[attempt.handler.name], waiting.options.schema_patience
    waited = now - arrival.since if arrival.queue else 0.0
    if isinstance(error, RowSchemaUnknown) and waited >= patience:
        error = RowUnreadable(f"{error}. It was waited for over {patience:g} s")
    gate.update_breaker(now)
    away = _away(waiting, arrival, gate, now)
    kind = classify(error, policy)
    decision: Decision | WaitForVersion | ProbeFailed
    if isinstance(error, NotYet):  # the outside is not to blame
        # Schemas are announced before rows are written with them: the row can be read in a moment.
        soon = isinstance(error, RowSchemaUnknown)
        pause = min(max(1.0, waited), NOT_YET_PAUSE) if soon else NOT_YET_PAUSE
        gate.record(attempt.permit, ok=True, now=now)
        decision = WaitForVersion(pause, soon)
    else:
        gate.not_yet.pop(arrival.queue, None)
        if isinstance(error, DataError) and kind is FailureKind.PERMANENT:
            gate.give_back(attempt.permit, now=now)
        else:
            gate.record(attempt.permit, ok=kind is FailureKind.PERMANENT, now=now)
        if gate.away and arrival.queue and kind is not FailureKind.PERMANENT:
            decision = ProbeFailed()  # nothing shows that the outside is back
        else:
            deadline = None if arrival.is_replay else arrival.deadline
            decision = decide(kind, attempt.attempts, policy=policy, now=now, deadline=deadline, away=away)
    note_failure(gate, attempt, error, kind, decision, now)
    return decision, error


def _away(waiting: Waiting, arrival: Arrival, gate: HandlerGate, now: float) -> float | None:
    """Pause before the next try of a message while no message of its handler has succeeded since its last
    try, in seconds; None: one has, this is its first try, or it has waited for too long already.
    """
    if arrival.is_replay:
        return None  # a replay must fail visibly: its letter cannot be settled meanwhile
    if not arrival.queue or now > arrival.since + waiting.options.outage_patience:
        return None
    queue = waiting.queues.get(arrival.queue)
    if queue is None or not queue.tried_ms or ms(gate.last_success) > queue.tried_ms:
        return None
    return gate.breaker.policy.max_open_for


def _is_answered(waiting: Waiting, attempt: Attempt, error: Exception, now: float) -> bool:
    """Whether the handler replies that the message failed. It does not reply to a replay, which an operator
    has requested, nor to a message whose payload was not fetched.
    """
    arrival, handler = attempt.arrival, attempt.handler
    if handler.on_give_up is None or arrival.message is None or arrival.is_replay:
        return False
    try:
        reply = handler.on_give_up(arrival.message, error)
        waiting.outcomes.stage(arrival, handler, reply, attempt.inbox_key, now)
    except Exception:
        log.exception("reply_on_give_up_failed", handler=handler.name, action="it is a dead letter")
        return False
    return True


def note_failure(
    gate: HandlerGate,
    attempt: Attempt,
    error: Exception,
    kind: FailureKind,
    decision: Decision | WaitForVersion | ProbeFailed,
    now: float,
) -> None:
    """Log and count a failed attempt at `now`, and the decision."""
    name, delay = _NAMES.get(type(decision)) or type(decision).__name__, getattr(decision, "delay", 0.0)
    arrival = attempt.arrival
    gate.failed(str(kind), Failure(now, arrival.record.key or b"", error_text(error), name))
    if arrival.span is not None:
        arrival.span.failed(error)
        arrival.span.attributes["steadfaust.failure"] = str(kind)
        arrival.span.attributes["steadfaust.decision"] = name
    log.warning(
        "handler_failed",
        handler=attempt.handler.name,
        error=f"{type(error).__name__}: {text_of(error)}",
        kind=str(kind),
        attempt=attempt.attempts,
        decision=name,
        delay=delay,
        topic=arrival.record.topic,
        partition=arrival.record.partition,
        offset=arrival.record.offset,
        **arrival.log_ids(),
    )


def mirror_to_retry_topic(attempt: Attempt, error: Exception, later: Later) -> None:
    """Copy the record to its retry topic, unchanged. The lane retries from the waiting row, which is in the
    same transaction.
    """
    arrival, handler = attempt.arrival, attempt.handler
    record = arrival.record
    added = [
        ("retry-service", handler.name.partition(".")[0].encode()),
        ("retry-handler", handler.name_bytes),
        ("retry-attempt", b"%d" % attempt.attempts),
        ("retry-due", rfc3339(later.due).encode()),
        ("retry-error-type", type(error).__name__.encode()),
        ("retry-error-message", message_bytes(error)),
        ("retry-source-partition", b"%d" % record.partition),
        ("retry-source-offset", b"%d" % record.offset),
    ]
    outgoing = Outgoing(record.key, record.value, [*record.headers, *added])
    arrival.entry.sends.append((TP(arrival.route.retries[later.tier - 1], 0), outgoing))
