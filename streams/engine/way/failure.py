"""What follows when an attempt failed or may not be made now (docs/adr/0009, docs/adr/0016).

`settle_failed` lists every decision after a failed attempt. `Detour` carries a decision out. `_decided` makes
it, with `policy.retry`. `Waiting` stages the rows. Times are epoch seconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import structlog

from streams.engine.staging.arrival import Arrival, Head
from streams.engine.staging.keys import name_in
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import Reason, ms
from streams.engine.waiting.waiting import NoRoom, Waiting
from streams.errors import (
    DataError,
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

#: Seconds until the next attempt at a message that needs another version of the application.
NOT_YET_PAUSE: Final = 30.0


class WaitForVersion(NamedTuple):
    """A decision: the message needs another version of the application, or a schema. `soon`: only a row's
    schema is missing, which may be announced within seconds.
    """

    delay: float
    due: float
    soon: bool


class ProbeFailed(NamedTuple):
    """A decision: the outside system is still unavailable, and the message is not to blame. It waits for the
    breaker.
    """


#: Names of decisions in logs and metrics. Other decisions have the name of their class.
_NAMES: Final[dict[type, str]] = {WaitForVersion: "NotYet", ProbeFailed: "probe failed"}


def settle_failed(
    waiting: Waiting,
    arrival: Arrival,
    handler: BoundHandler,
    gate: HandlerGate,
    error: BaseException,
    now: float,
) -> bool:
    """Decide what follows a failed attempt, and do it. True: the handler tries again at once, with a new
    permit. False: the message waits, or has ended.
    """
    detour = Detour(waiting, arrival, handler, gate, now)
    decision, error = _decided(detour, error)
    match decision:
        case TryAgain():
            return detour.try_again_now(error)
        case Later():
            detour.wait_for_retry(decision, error)
        case PutOff():
            detour.wait_uncounted(Reason.RETRY, decision.due, error)
        case ProbeFailed():
            detour.wait_uncounted(Reason.BREAKER, now, error)
        case WaitForVersion():
            detour.wait_for_version(decision, error)
        case GiveUp() | Expired():
            detour.give_up(error)
    return False


class Detour:
    """A message that cannot continue straight to the next handler, and what can be done with it `now`."""

    __slots__ = ("arrival", "gate", "handler", "head", "now", "waiting")

    def __init__(
        self, waiting: Waiting, arrival: Arrival, handler: BoundHandler, gate: HandlerGate, now: float
    ) -> None:
        self.waiting = waiting
        self.arrival = arrival
        self.handler = handler
        self.gate = gate
        self.now = now
        self.head = arrival if isinstance(arrival, Head) else None

    def try_again_now(self, error: BaseException) -> bool:
        """Give the attempt a new permit. False: the gate gives none, so the message waits for the gate."""
        gate, is_shut = self.gate, self.arrival.entry.prefix in self.gate.shut
        permit = None if is_shut else gate.breaker.acquire(self.now)
        if permit is None:
            self.wait_until(Reason.PAUSED if is_shut else Reason.BREAKER, self.now, error)
            return False
        self.arrival.attempt.permit = permit
        gate.retried(0)
        return True

    def wait_for_retry(self, decision: Later, error: BaseException) -> None:
        """Wait for the next attempt, with a copy in a retry topic."""
        if self.wait_until(Reason.RETRY, decision.due, error):
            self.waiting.staging.counters.retries += 1
            self.gate.retried(decision.tier)
            self.waiting.letters.mirror(self.arrival, error, decision.tier, decision.due)

    def wait_uncounted(self, reason: Reason, due: float, error: BaseException) -> bytes:
        """Wait without counting the attempt, because the message is not to blame."""
        self.arrival.attempt.tries -= 1
        return self.wait_until(reason, due, error)

    def wait_for_version(self, decision: WaitForVersion, error: BaseException) -> None:
        """Wait for a version of the application that can handle the message, without counting the attempt.
        Health shows the queue unless `soon`.
        """
        local = self.wait_uncounted(Reason.RETRY, decision.due, error)
        if local and not decision.soon:
            self.gate.not_yet[local] = str(error)

    def wait_until(
        self, reason: Reason, due: float, error: BaseException | None, local: bytes = b""
    ) -> bytes:
        """Wait until the message is due, in its own queue or in the one with a `local` key. Returns that key.
        Empty: the queue had no room, so the message has ended, and holds no others back.
        """
        waits = self.waiting.wait(self.arrival, reason, due, self.now, error, local)
        if not isinstance(waits, NoRoom):
            return waits.queue
        if isinstance(waits.error, RowUnreadable):
            self._dead_letter(waits.error, may_hold=False)
        else:
            self.give_up(error or waits.error, may_hold=False)
        return b""

    def give_up(self, error: BaseException, *, may_hold: bool = True) -> None:
        """End a message: with its handler's `on_give_up` reply, or as a dead letter, which may hold others
        back.
        """
        if not self._answer_as_failed(error):
            self._dead_letter(error, may_hold=may_hold)

    def _answer_as_failed(self, error: BaseException) -> bool:
        """Stage the handler's reply that a message failed. False: there is none, because the handler gives
        none, an operator requested the run, or the payload was not fetched.
        """
        arrival, handler, head = self.arrival, self.handler, self.head
        if handler.on_give_up is None or arrival.message is None or (head is not None and head.is_replay):
            return False
        try:
            reply = handler.on_give_up(arrival.message, ordinary(error))
            self.waiting.outcomes.stage(arrival, handler, reply, arrival.inbox_key, self.now)
        except BaseException as raised:
            if ends_process(raised):
                raise
            log.exception("reply_on_give_up_failed", handler=handler.name, action="it is a dead letter")
            return False
        self.gate.unavailable.pop(arrival.place, None)
        if head is not None:
            self.waiting.leave(head, self.now)
        return True

    def _dead_letter(self, error: BaseException, *, may_hold: bool) -> None:
        """Dead-letter the message. The next one of its ordering key runs now or, with `hold_while_dead`, once
        an operator has settled the dead letter.
        """
        arrival, holds = self.arrival, b""
        self.gate.unavailable.pop(arrival.place, None)
        if may_hold and self.handler.retry.hold_while_dead:
            waits = self.waiting.wait(arrival, Reason.DEAD, 0.0, self.now)
            holds = b"" if isinstance(waits, NoRoom) else name_in(waits.queue)
        if not holds and self.head is not None:
            self.waiting.leave(self.head, self.now)
        self.waiting.letters.give_up(arrival, error, self.now, holds=holds)


def _decided(
    detour: Detour, error: BaseException
) -> tuple[Decision | WaitForVersion | ProbeFailed, BaseException]:
    """Count a failure for the breaker, and decide what follows. Returns the decision and its error."""
    arrival, head, gate, now = detour.arrival, detour.head, detour.gate, detour.now
    policy, patience = detour.handler.retry, detour.waiting.options.schema_patience
    waited = 0.0 if head is None else now - head.since
    if isinstance(error, RowSchemaUnknown) and waited >= patience:
        error = RowUnreadable(f"{error}. It was waited for over {patience:g} s")
    elif isinstance(error, UnknownSchema) and waited >= patience:  # its payload came by reference
        error = never_read(error, patience, arrival.since)
    kind = classify(error, policy)
    decision: Decision | WaitForVersion | ProbeFailed
    if isinstance(error, NotYet | UnknownSchema):  # not a failure of an outside system
        # Schemas are announced before rows are written with them, so the row can be read soon.
        soon = isinstance(error, RowSchemaUnknown)
        pause = min(max(1.0, waited), NOT_YET_PAUSE) if soon else NOT_YET_PAUSE
        gate.record(arrival.attempt.permit, ok=True, now=now)
        decision = WaitForVersion(pause, now + pause, soon)
    else:
        if head is not None:
            gate.not_yet.pop(head.queue, None)
        if isinstance(error, DataError) and kind is FailureKind.PERMANENT:
            gate.give_back(arrival.attempt.permit, now=now)
        else:
            gate.record(arrival.attempt.permit, ok=kind is FailureKind.PERMANENT, now=now)
        if gate.away and head is not None and kind is not FailureKind.PERMANENT:
            decision = ProbeFailed()  # nothing shows that the outside system is back
        else:
            deadline = None if head is not None and head.is_replay else arrival.deadline
            away = None if head is None else _away(detour.waiting, head, gate, now)
            tries = arrival.attempt.tries
            decision = decide(kind, tries, policy=policy, now=now, deadline=deadline, away=away)
    name, delay = _NAMES.get(type(decision)) or type(decision).__name__, getattr(decision, "delay", 0.0)
    gate.failed(arrival, error, str(kind), name, delay, now)
    return decision, error


def _away(waiting: Waiting, head: Head, gate: HandlerGate, now: float) -> float | None:
    """Seconds until the next attempt at a message, if no message of its handler has succeeded since its last
    one. None: one has, it was not tried before as the head, it is a replay, or `outage_patience` is over.
    """
    if head.is_replay:
        return None  # a replay must fail visibly: its dead letter cannot be settled meanwhile
    if now > head.since + waiting.options.outage_patience:
        return None
    queue = waiting.queues.get(head.queue)
    if queue is None or not queue.tried_ms or ms(gate.last_success) > queue.tried_ms:
        return None
    return gate.breaker.policy.max_open_for


def never_read(unknown: UnknownSchema, patience: float, since: float) -> SchemaNeverAnnounced | Undecodable:
    """The error of a message whose schema was not announced within `schema_patience`."""
    waited = f"within {patience:g} s from {rfc3339(since)}"
    if isinstance(unknown, NewerSchema):
        return Undecodable(
            f"{unknown}. No worker of that version has taken its lane {waited}: deploy it, then replay this"
        )
    return SchemaNeverAnnounced(
        f"schema {unknown.fingerprint} was not announced {waited}: start a worker that has it, then replay"
        " this message"
    )
