"""Messages that wait for a handler: queues as rows, and the gates over them. Changes are staged here.

Times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from streams.dead_letters.row import Letter, LetterState
from streams.dead_letters.table import DeadLetters
from streams.errors import QueueFull, RowUnreadable, TooLarge, UnknownSchema
from streams.model.application import BoundHandler
from streams.model.envelope import FINGERPRINT, RECORD_OVERHEAD
from streams.policy.breaker import BreakerState
from streams.ports import Record
from streams.retry.gate import HandlerGate
from streams.retry.long_queues import LongQueues
from streams.retry.queue import Reason, WaitingQueue, handler_of, message_of, set_message, set_queue
from streams.retry.queue_changes import (
    put_in,
    queue_of_order,
    released,
    replayed,
    take_head,
    with_message,
    woken,
)
from streams.retry.queue_rows import Queues
from streams.staging.arrival import Arrival, Attempt
from streams.staging.changes import Change
from streams.staging.entry import Entry
from streams.staging.keys import name_in
from streams.staging.outcomes import Outcomes

log = structlog.get_logger(__name__)

#: Unknown schemas that the log names, each once: anybody can make up fingerprints.
MOST_LOGGED = 100


class CannotWait(Exception):
    """A message that was to wait has no room in a queue: the caller gives it up, because of `why`.

    Attributes:
        may_reply: whether the handler may send a failure reply in place of the dead letter.
    """

    def __init__(self, why: Exception, *, may_reply: bool = True) -> None:
        self.why = why
        self.may_reply = may_reply
        super().__init__(str(why))


class Waiting:
    """The queues of one lane and the gates of its handlers. Nothing else changes either.

    Attributes:
        gates: whether messages run now, by handler.
        queues: those of all handlers.
        letters, outcomes: stage the end of a message that waits no longer.
        long_queues: the queues that are long.
    """

    def __init__(self, outcomes: Outcomes, letters: DeadLetters, gates: Mapping[str, HandlerGate]) -> None:
        app = outcomes.staging.app
        self.staging = outcomes.staging
        self.options = app.lane_options
        self.gates = gates
        self.queues = Queues(outcomes.staging)
        self.outcomes = outcomes
        self.letters = letters
        self.long_queues = LongQueues(app, gates)
        self._limit = app.lane_options.max_message_bytes - RECORD_OVERHEAD
        self._logged: set[str] = set()

    def load(self, now: float) -> None:
        """Read the committed queues. A handler whose messages wait for its breaker begins with probes."""
        unknown_handlers: set[str] = set()
        for local, queue in self.queues.committed():
            name = handler_of(name_in(local)).decode("utf-8", "replace")
            gate = self.gates.get(name)
            if gate is None:
                unknown_handlers.add(name)
                continue
            gate.add(local)
            if queue is None:  # unreadable: later messages of its key must not overtake it
                continue
            self.long_queues.note(gate, local, queue, now)
            self.await_schema(gate, local, queue)
            if Reason.BREAKER in _reasons(queue) and gate.breaker.state is BreakerState.CLOSED:
                gate.breaker.start_half_open(now)
        for name in sorted(unknown_handlers):
            log.warning("waiting_for_no_handler", handler=name, action="was it renamed? they wait on")

    def await_schema(self, gate: HandlerGate, local: bytes, queue: WaitingQueue) -> None:
        """Watch for the schema that the head of a queue, or the first message behind its replays, needs."""
        if Reason.SCHEMA in _reasons(queue):
            number = queue.head if queue.reason is Reason.SCHEMA else queue.first
            try:
                message = self.queues.message(local, number)
            except RowUnreadable:
                gate.unroutable.add(local)
                return
            fingerprint = dict(message.headers).get(FINGERPRINT, b"")
            gate.unread.add(local, message.topic, fingerprint, message.waits_since)

    def log_unknown(self, unknown: UnknownSchema) -> None:
        """Name a schema that messages wait for in the log, once."""
        if unknown.fingerprint not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(unknown.fingerprint)
            log.warning("schema_unknown", fingerprint=unknown.fingerprint, action=str(unknown))

    def wait(
        self,
        attempt: Attempt,
        reason: Reason,
        due: float,
        now: float,
        *,
        error: Exception | None = None,
        local: bytes = b"",
    ) -> bytes:
        """Let a message wait until it is due: as the head of its queue, as the first of one that begins, or
        behind others. `error` is what its handler has raised now, if it was tried. `local` is the local key
        of the queue, where the message says another one; returns the local key.

        Raises CannotWait: because of `error`, if there is one.
        """
        arrival, handler = attempt.arrival, attempt.handler
        gate, local = self.gates[handler.name], local or arrival.queue or queue_of_order(arrival, handler)
        queue, is_head = self.queues.get(local), arrival.queue == local
        assert queue is not None or not is_head
        if queue is None and local in gate.queues:
            unreadable = RowUnreadable(f"it is to wait in the queue {name_in(local)!r}, which cannot be read")
            raise CannotWait(unreadable, may_reply=False)
        after, changes = put_in(local, queue, attempt, reason, due, now, error=error)
        if not is_head and (full := self._full(handler, reason, queue, after) or self.too_large(changes)):
            raise CannotWait(error or full)
        self.staging.put(arrival.entry, changes)
        gate.add(local)
        if is_head:
            gate.running.discard(local)
        elif queue is not None:
            self.long_queues.note(gate, local, after, now)
            if arrival.is_replay:
                gate.unroutable.discard(local)  # its head is another one now
        if arrival.queue and not is_head:
            self.leave(attempt, now)
        elif not arrival.queue and reason is not Reason.DEAD:  # else it has been counted
            self.staging.counters.waiting += 1
        return local

    def _full(
        self, handler: BoundHandler, reason: Reason, queue: WaitingQueue | None, after: WaitingQueue
    ) -> QueueFull | None:
        """Why a message cannot wait behind others, with which the queue is `after`; None: it can. A dead
        letter waits behind none.
        """
        fits = after.length <= self.options.max_waiting and after.bytes <= self.options.max_waiting_bytes
        if queue is None or (fits and reason is not Reason.DEAD):
            return None
        return QueueFull(
            f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait for"
            f" {handler.name} already: it cannot wait behind them"
        )

    def too_large(self, changes: Sequence[Change]) -> TooLarge | None:
        """Why a message cannot wait in these rows; None: it can."""
        largest = max(len(change.key) + len(change.value or b"") for change in changes)
        if largest <= self._limit:
            return None
        return TooLarge(f"it is to wait, in a row of {largest} bytes; the limit is {self._limit}")

    def hold(self, attempt: Attempt, now: float) -> bytes:
        """Let all of an ordering key wait behind a message that is a dead letter from now on. Returns the
        local key of the queue; empty: others wait in it already, or it has no room.
        """
        try:
            return self.wait(attempt, Reason.DEAD, 0.0, now)
        except CannotWait:
            return b""

    def leave(self, attempt: Attempt, now: float) -> None:
        """Remove the head of a queue, if the message is one: the message behind it is next."""
        arrival, gate = attempt.arrival, self.gates[attempt.handler.name]
        local = arrival.queue
        if not local:
            return
        queue = self.queues.get(local)
        assert queue is not None
        rest, changes = take_head(local, queue, arrival.entry.size, now)
        self.staging.put(arrival.entry, changes)
        gate.running.discard(local)
        gate.not_yet.pop(local, None)
        if rest is None:
            gate.remove(local)
        elif local in gate.long_queues:
            self.long_queues.note(gate, local, rest, now)

    def succeeded(self, attempt: Attempt, seconds: float, now: float) -> None:
        """Count an attempt that has succeeded, and how long it took. A message that had waited leaves its
        queue; of a replay, the dead letter goes.
        """
        arrival, handler = attempt.arrival, attempt.handler
        self.gates[handler.name].handled(attempt.permit, seconds, now)
        self.leave(attempt, now)
        if arrival.is_replay:
            self.letters.succeeded(arrival.entry, arrival.record, handler.name, now)

    def replay(self, arrival: Arrival, handler: BoundHandler, letter: Letter, now: float) -> str:
        """Insert a replay before messages that are not replays. Returns why not; empty when it is staged."""
        now_ms = int(now * 1000)
        message = message_of(letter.record, now_ms, letter=True)
        if letter.queue:
            local = arrival.entry.prefix + letter.queue
        else:
            local = queue_of_order(arrival, handler)
        queue = self.queues.get(local)
        if queue is None and local in self.gates[handler.name].queues:
            return "what waits of its ordering key cannot be read: see row_unreadable in the log"
        number = None if queue is None or not letter.queue else self._place(local, queue, letter)
        if queue is not None and number is not None:
            grown = message.size - self.queues.message(local, number).size
            after = woken(queue, number, grown, now_ms)
        else:
            after = replayed(queue, message.size, now_ms)
            most, most_bytes = self.options.max_waiting, self.options.max_waiting_bytes
            if queue is not None and (after.length > most or after.bytes > most_bytes):
                return (
                    f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait already:"
                    " try again later"
                )
            number = after.newest_replay
        changes = with_message(local, after, number, message)
        if (too_large := self.too_large(changes)) is not None:
            return str(too_large)
        self.staging.put(arrival.entry, changes)
        gate = self.gates[handler.name]
        gate.add(local)
        gate.unroutable.discard(local)  # its head is another one now
        return ""

    def release(self, entry: Entry, letter: Letter, now: float) -> None:
        """Remove a dead letter, or its replay, from its queue: the messages behind it have their turn."""
        for local, queue in self._where(entry, letter):
            number = self._place(local, queue, letter)
            if number is not None:
                self._take_out(entry, local, queue, number, now)

    def _where(self, entry: Entry, letter: Letter) -> list[tuple[bytes, WaitingQueue]]:
        """The queues in which a letter may wait: the one that it holds; of a replay, any of its handler and
        key, for only the handler may know the ordering key within that.
        """
        if letter.state is LetterState.REPLAYING:
            key = letter.key or b""
            return list(self.queues.of_key(entry.prefix, letter.handler.encode(), key))
        local = entry.prefix + letter.queue
        queue = self.queues.get(local) if letter.queue else None
        return [] if queue is None else [(local, queue)]

    def _take_out(self, entry: Entry, local: bytes, queue: WaitingQueue, number: int, now: float) -> None:
        """Remove a message from a queue, by its number."""
        name, size = name_in(local), self.queues.message(local, number).size
        rest = released(queue, number, size, int(now * 1000))
        self.staging.put(entry, [set_queue(name, rest), set_message(name, number, None)])
        gate = self.gates.get(handler_of(name).decode())
        if gate is None:
            return
        gate.unroutable.discard(local)  # its head may be another one now
        if rest is None:
            gate.remove(local)
        else:
            self.await_schema(gate, local, rest)

    def erase(self, entry: Entry, local: bytes, queue: WaitingQueue) -> None:
        """Remove a queue with all that waits in it."""
        name = name_in(local)
        numbers = [*range(queue.first, queue.next), *queue.numbers]
        gone = [set_message(name, number, None) for number in dict.fromkeys(numbers)]
        self.staging.put(entry, [set_queue(name, None), *gone])
        gate = self.gates.get(handler_of(name).decode())
        if gate is not None:
            gate.unroutable.discard(local)
            gate.remove(local)

    def _place(self, local: bytes, queue: WaitingQueue, letter: Letter) -> int | None:
        """The number of a letter's message in a queue; None: it does not wait there."""
        for number in dict.fromkeys((queue.head, *queue.numbers)):
            try:
                message = self.queues.message(local, number)
            except RowUnreadable:
                continue
            if message.letter and _origin(message) == _origin(letter.record):
                return number
        return None


def _origin(of: Record) -> tuple[str, int, int, int]:
    """Which record it was: a topic that was deleted and created again had others at the same offsets."""
    return of.topic, of.partition, of.offset, of.timestamp


def _reasons(queue: WaitingQueue) -> list[Reason]:
    """Why the head of a queue waits, and why the first message behind replays does, if there are any."""
    return [queue.reason, *(queue.behind or ())[:1]]
