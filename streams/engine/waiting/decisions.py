"""Decide before an attempt whether the handler sees the message, and after one that failed what follows.

The message is tried again at once, waits as a row, or is given up (docs/adr/0009, docs/adr/0016). It is one
page on purpose: every message that does not go straight through passes here.
`policy.retry` decides on failures; here one `match` has all ends. `Waiting` carries them out. Times are epoch
seconds.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import structlog

from streams.engine.staging.arrival import Arrival
from streams.engine.staging.keys import name_in
from streams.engine.waiting.gate import HandlerGate, Unavailable
from streams.engine.waiting.queue import Reason, ms, queue_name
from streams.engine.waiting.waiting import Waiting
from streams.errors import (
    BlobsUnavailable,
    DataError,
    MessageExpired,
    NewerSchema,
    NotYet,
    RowSchemaUnknown,
    RowUnreadable,
    SchemaNeverAnnounced,
    Undecodable,
    UnknownSchema,
    ends_process,
)
from streams.escapes import ordinary
from streams.model.bound import BoundHandler
from streams.model.envelope import rfc3339
from streams.model.policy.breaker import BreakerState
from streams.model.policy.retry import (
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

log: Final = structlog.get_logger(__name__)

#: An ordering key longer than this is hashed: it is part of the keys of rows.
MAX_ORDER_BYTES: Final = 64
#: Pause before a message is tried again that needs another version of the application, in seconds.
NOT_YET_PAUSE: Final = 30.0


class Wait(NamedTuple):
    """A message waits until it is due; `local` is the local key of the queue, where that is not its own."""

    reason: Reason
    due: float
    local: bytes = b""


class WaitForVersion(NamedTuple):
    """A decision: another version of the application can handle the message. `soon`: after a moment."""

    delay: float
    soon: bool


class ProbeFailed(NamedTuple):
    """A decision: the outside is still away, and the message is not to blame. It waits for the breaker."""


#: Names of decisions in logs and metrics; others have those of their classes.
_NAMES: Final[dict[type, str]] = {WaitForVersion: "NotYet", ProbeFailed: "probe failed"}

# -- before an attempt ----------------------------------------------------------------------------------


def queues_of(arrival: Arrival, handler: BoundHandler) -> tuple[bytes, bytes]:
    """The local keys of the queues in which a message may wait: of its message key alone, and of its ordering
    key. Both are one where the handler orders by nothing else, or the message cannot be read yet.
    """
    prefix, name, key = arrival.entry.prefix, handler.name_bytes, arrival.key
    order = b""
    if handler.order_by is not None and arrival.message is not None:
        try:
            order = handler.order_by(arrival.message).encode()
        except BaseException as error:
            if ends_process(error):
                raise
            log.exception("order_by_failed", handler=handler.name, action="it is ordered by its key")
        if len(order) > MAX_ORDER_BYTES:
            order = blake2b(order, digest_size=16).digest()
    by_key = prefix + queue_name(name, key)
    return by_key, by_key + order


def may_run(waiting: Waiting, arrival: Arrival, now: float) -> bool:
    """Whether a handler may see a message now, where something waits or the gate is shut. The attempt has its
    permit then. Else the message waits, or was given up.
    """
    if arrival.queue and is_overtaken(waiting, arrival):
        return False
    by_key, by_order = queues_of(arrival, arrival.handler)
    if isinstance(arrival.error, UnknownSchema):
        found: bool | Wait | Exception = _await_schema(waiting, arrival, arrival.error, by_key, now)
    elif arrival.queue:
        # What is given up has its turn, too, among those of its ordering key.
        behind = _behind_others(waiting, arrival, by_key, by_order, now)
        found = behind or arrival.error or _expired(waiting, arrival, now) or True
    else:
        found = _admit_new(waiting, arrival, by_key, by_order, now)
    if isinstance(found, bool):
        return found
    local = _end_or_wait(waiting, arrival, found, now)
    for_schema = isinstance(found, Wait) and found.reason is Reason.SCHEMA
    if local and for_schema and isinstance(arrival.error, UnknownSchema):
        since = arrival.since if arrival.queue else now
        unread, error = waiting.gates[arrival.handler.name].unread, arrival.error
        is_newer = isinstance(error, NewerSchema)
        unread.add(local, arrival.record.topic, error.fingerprint.encode(), since, newer=is_newer)
    return False


def is_overtaken(waiting: Waiting, arrival: Arrival) -> bool:
    """Whether the head of a queue may not run after all: since it was dispatched, an operator has paused its
    handler, put a replay before it, or taken it out. It gives its permit back.
    """
    gate, queue = waiting.gates[arrival.handler.name], waiting.queues.get(arrival.queue)
    overtaken = queue is None or queue.head != arrival.number
    if not overtaken and arrival.entry.prefix not in gate.shut:
        return False
    gate.running.discard(arrival.queue)
    gate.breaker.give_back(arrival.permit)
    return True


def may_go_on(waiting: Waiting, arrival: Arrival, now: float) -> bool:
    """Whether a handler may see a message whose payload has been fetched. Its ordering key is known now: it
    waits behind others of that, if there are any. One that waited may have expired while it was fetched.
    """
    behind = _behind_others(waiting, arrival, *queues_of(arrival, arrival.handler), now)
    found = behind or _expired(waiting, arrival, now)
    if found is not None:
        _end_or_wait(waiting, arrival, found, now)
    return found is None


def _admit_new(waiting: Waiting, arrival: Arrival, by_key: bytes, by_order: bytes, now: float) -> bool | Wait:
    """Whether the handler may see a message that was just read. One that accepts expired messages sees them
    at once, unless an earlier message of the key is to be tried again.
    """
    handler, partition = arrival.handler, arrival.entry.prefix
    gate, until = waiting.gates[handler.name], arrival.envelope.deadline
    if handler.accepts_expired and arrival.inbox_key is None and until is not None and until < now:
        queue = waiting.queues.get(by_key)
        is_tried = queue is not None and queue.reason in (Reason.RETRY, Reason.SCHEMA)
        return partition in gate.shut or gate.breaker.state is BreakerState.OPEN or not is_tried
    local = by_key if by_key in gate.queues else by_order
    if local in gate.queues:
        return Wait(Reason.NEXT, now, local)
    if partition in gate.pauses:
        return Wait(Reason.PAUSED, now)
    if gate.breaker.state is not BreakerState.CLOSED:
        permit = gate.breaker.acquire(now)
        if permit is None:
            return Wait(Reason.BREAKER, now)
        arrival.permit = permit
    return True


def _behind_others(
    waiting: Waiting, arrival: Arrival, by_key: bytes, by_order: bytes, now: float
) -> Wait | None:
    """Where a message has to wait behind others of its ordering key, which is known only with its payload.
    Until it has that, it holds back all of its message key. Its permit goes back: nothing was tried with it.
    """
    gate = waiting.gates[arrival.handler.name]
    if by_order == by_key or by_order not in gate.queues or arrival.queue not in (b"", by_key):
        return None
    gate.breaker.give_back(arrival.permit)
    return Wait(Reason.NEXT, now, by_order)


def _expired(waiting: Waiting, arrival: Arrival, now: float) -> MessageExpired | None:
    """The error of a waiting message that has expired after its turn came, while others of its key ran or its
    payload was fetched; its permit is given back. None: it may be tried.
    """
    until = arrival.envelope.deadline
    if not arrival.queue or arrival.is_replay or until is None or until >= now:
        return None
    waiting.gates[arrival.handler.name].breaker.give_back(arrival.permit)
    return MessageExpired(f"its deadline was {now - until:.1f} s ago when its attempt was to begin")


def _await_schema(
    waiting: Waiting, arrival: Arrival, unknown: UnknownSchema, by_key: bytes, now: float
) -> Wait | MessageExpired | SchemaNeverAnnounced | Undecodable:
    """How a message waits that cannot be decoded yet, with all later ones of its message key: its ordering
    key is not known. An error: it has waited for too long, or has expired.
    """
    gate, patience = waiting.gates[arrival.handler.name], waiting.options.schema_patience
    if not arrival.queue and by_key in gate.queues:
        return Wait(Reason.NEXT, now, by_key)
    since = arrival.since if arrival.queue else now
    deadline = None if arrival.is_replay else arrival.envelope.deadline
    over: MessageExpired | SchemaNeverAnnounced | Undecodable | None = None
    if deadline is not None and deadline < now:
        over = MessageExpired(f"its deadline was {now - deadline:.1f} s ago, and it waits: {unknown}")
    elif since + patience <= now:
        over = _never_read(unknown, patience, since)
    if over is not None:
        gate.unread.forget(arrival.queue)
        return over
    if not arrival.queue and arrival.entry.prefix in gate.pauses:
        return Wait(Reason.PAUSED, now)
    due = since + patience if deadline is None else min(since + patience, deadline + 0.001)
    return Wait(Reason.SCHEMA, due)


def _never_read(unknown: UnknownSchema, patience: float, since: float) -> SchemaNeverAnnounced | Undecodable:
    """The error of a message that has waited until it could be read for as long as it may."""
    waited = f"within {patience:g} s from {rfc3339(since)}"
    if isinstance(unknown, NewerSchema):
        return Undecodable(
            f"{unknown}. No worker of that version has taken its lane {waited}: deploy it, then replay this"
        )
    return SchemaNeverAnnounced(
        f"schema {unknown.fingerprint} was not announced {waited}: start a worker that has it, then replay"
        " this message"
    )


# -- after an attempt that failed -----------------------------------------------------------------------


def settle_failed(waiting: Waiting, arrival: Arrival, error: BaseException, now: float) -> bool:
    """Decide what follows a failed attempt. True: the handler tries again at once, with a new permit; else
    the message waits, or has ended.
    """
    gate = waiting.gates[arrival.handler.name]
    decision, error = _decided(waiting, arrival, error, now)
    if isinstance(error, BlobsUnavailable):
        gate.unavailable[arrival.place] = Unavailable(error.cause, str(error))
    else:
        gate.unavailable.pop(arrival.place, None)
    reason, due = Reason.RETRY, now
    match decision:
        case GiveUp() | Expired():
            _end_or_wait(waiting, arrival, error, now)
            return False
        case TryAgain():
            held = arrival.entry.prefix in gate.shut
            permit = None if held else gate.breaker.acquire(now)
            if permit is not None:
                arrival.permit = permit
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
        arrival.attempts -= 1  # the message is not to blame
    if not (local := _end_or_wait(waiting, arrival, Wait(reason, due), now, error)):
        return False
    if isinstance(decision, Later):
        waiting.staging.counters.retries += 1
        gate.retried(decision.tier)
        waiting.letters.mirror(arrival, error, decision.tier, decision.due)
    elif isinstance(decision, WaitForVersion) and not decision.soon:
        gate.not_yet[local] = str(error)
    return False


def _decided(
    waiting: Waiting, arrival: Arrival, error: BaseException, now: float
) -> tuple[Decision | WaitForVersion | ProbeFailed, BaseException]:
    """Decide after a failure: the decision, and the error for it. The breaker counts the failure."""
    policy = arrival.handler.retry
    gate, patience = waiting.gates[arrival.handler.name], waiting.options.schema_patience
    waited = now - arrival.since if arrival.queue else 0.0
    if isinstance(error, RowSchemaUnknown) and waited >= patience:
        error = RowUnreadable(f"{error}. It was waited for over {patience:g} s")
    elif isinstance(error, UnknownSchema) and waited >= patience:  # its payload came by reference
        error = _never_read(error, patience, arrival.since)
    gate.update_breaker(now)
    away = _away(waiting, arrival, gate, now)
    kind = classify(error, policy)
    decision: Decision | WaitForVersion | ProbeFailed
    if isinstance(error, NotYet | UnknownSchema):  # the outside is not to blame
        # Schemas are announced before rows are written with them: the row can be read in a moment.
        soon = isinstance(error, RowSchemaUnknown)
        pause = min(max(1.0, waited), NOT_YET_PAUSE) if soon else NOT_YET_PAUSE
        gate.record(arrival.permit, ok=True, now=now)
        decision = WaitForVersion(pause, soon)
    else:
        gate.not_yet.pop(arrival.queue, None)
        if isinstance(error, DataError) and kind is FailureKind.PERMANENT:
            gate.give_back(arrival.permit, now=now)
        else:
            gate.record(arrival.permit, ok=kind is FailureKind.PERMANENT, now=now)
        if gate.away and arrival.queue and kind is not FailureKind.PERMANENT:
            decision = ProbeFailed()  # nothing shows that the outside is back
        else:
            deadline = None if arrival.is_replay else arrival.deadline
            decision = decide(kind, arrival.attempts, policy=policy, now=now, deadline=deadline, away=away)
    name, delay = _NAMES.get(type(decision)) or type(decision).__name__, getattr(decision, "delay", 0.0)
    gate.failed(arrival, error, str(kind), name, delay, now)
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


# -- what follows ---------------------------------------------------------------------------------------


def _end_or_wait(
    waiting: Waiting,
    arrival: Arrival,
    found: Wait | BaseException,
    now: float,
    error: BaseException | None = None,
) -> bytes:
    """Let a message wait, or give it up: because of the error found, or since it has no room to wait. `error`
    is what its handler has raised now. Returns the local key of the queue in which it waits, if it does.

    What is given up ends with a failure reply of its handler, or as a dead letter. The next of its ordering
    key has its turn; where the handler's policy holds it back, after an operator has settled the letter. A
    message that had no room to wait holds no queue.
    """
    handler = arrival.handler
    local = arrival.queue or queues_of(arrival, handler)[1]
    may_hold = may_reply = isinstance(found, BaseException)
    if isinstance(found, Wait):
        local = found.local or local
        why_not = waiting.wait(arrival, local, found.reason, found.due, now, error)
        if why_not is None:
            return local
        may_reply = not isinstance(why_not, RowUnreadable)
        found = error or why_not if may_reply else why_not
    waiting.gates[handler.name].unavailable.pop(arrival.place, None)
    answered = may_reply and _is_answered(waiting, arrival, found, now)
    holds = may_hold and handler.retry.hold_while_dead and not answered
    holds = holds and waiting.wait(arrival, local, Reason.DEAD, 0.0, now) is None
    if not holds:
        waiting.leave(arrival, now)
    if not answered:
        waiting.letters.give_up(arrival, found, now, holds=name_in(local) if holds else b"")
    return b""


def _is_answered(waiting: Waiting, arrival: Arrival, error: BaseException, now: float) -> bool:
    """Whether the handler replies that the message failed. It does not reply to a replay, which an operator
    has requested, nor to a message whose payload was not fetched.
    """
    handler = arrival.handler
    if handler.on_give_up is None or arrival.message is None or arrival.is_replay:
        return False
    try:
        reply = handler.on_give_up(arrival.message, ordinary(error))
        waiting.outcomes.stage(arrival, handler, reply, arrival.inbox_key, now)
    except BaseException as raised:
        if ends_process(raised):
            raise
        log.exception("reply_on_give_up_failed", handler=handler.name, action="it is a dead letter")
        return False
    return True
