"""Handle messages that a lane sends to itself in the transaction that writes them (docs/adr/0046).

This works only if all handlers succeed at once. If one fails or must wait, or a payload must be written, the
message's changes are taken back, and it is handled when the lane has read it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from streams.engine.staging.arrival import Arrival, Fresh
from streams.engine.staging.entry import Entry
from streams.engine.staging.loops import Loops, Sent
from streams.engine.staging.payloads import decoded
from streams.engine.way.attempt import Attempts
from streams.errors import PermanentError, UnknownSchema
from streams.logs import handling
from streams.model.envelope import LOOPBACK, Envelope
from streams.model.policy.breaker import NO_PERMIT
from streams.ports import TP, Headers, Outgoing, Sendable
from streams.tracing.span import Span

#: Maximum messages handled with one that was read: together they are one turn, and one transaction.
MOST: Final = 32
#: Maximum seconds for them: the rest is read back, so that other lanes have their turn.
TURN: Final = 0.05


class LoopedRecord:
    """A staged record in the form in which its lane will read it."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "topic", "value")

    def __init__(self, tp: TP, outgoing: Sendable, now: float) -> None:
        self.topic, self.partition = tp
        self.offset = -1  # it has none yet
        self.timestamp = int(now * 1000)
        self.key: bytes | None = outgoing.key
        self.value: bytes | None = outgoing.value
        self.headers: Headers = outgoing.headers


class Loopback:
    """The loopback of one lane, from one opening to the next."""

    def __init__(self, attempts: Attempts, loops: Loops, limit: Callable[[], int]) -> None:
        """`limit` returns how many messages a transaction may have now."""
        self._attempts = attempts
        waiting = attempts.waiting
        app = waiting.staging.app
        self._mark = (LOOPBACK, app.layout.app_id.encode())
        self._routes = app.routes
        self._gates = waiting.gates
        self._staging = waiting.staging
        self._loops = loops
        self._limit = limit
        self._clock = attempts.clock

    def complete(self, arrival: Arrival) -> None:
        """Handle what a message sent to its own lane, and what those messages send, in the order in which
        they are written. Called when all handlers of the message have decided. Raises HandlerFailed or
        StoreFailed.
        """
        if arrival.route.loops:
            self._loops.remove_read(arrival.record)
        entry = arrival.entry
        if not (sent := self._loops.take_sent(entry)):
            return
        now = self._clock.now()
        at, until, most = 0, perf_counter() + TURN, min(MOST, self._limit() - 1)
        while at < min(len(sent), most) and perf_counter() < until:
            tp, outgoing = entry.sends[sent[at].number]
            if self._handle(entry, tp, outgoing, sent[at], now):
                marked = Outgoing(outgoing.key, outgoing.value, [*outgoing.headers, self._mark])
                entry.sends[sent[at].number] = (tp, marked)
                entry.messages += 1
                sent += self._loops.take_sent(entry)
            at += 1

    def _handle(self, entry: Entry, tp: TP, outgoing: Sendable, sent: Sent, now: float) -> bool:
        """Handle a message that an entry sends, if no earlier message of its key is unhandled and all of its
        handlers succeed at once. False: it is handled when the lane has read it.
        """
        key, route = outgoing.key or b"", self._routes[tp.topic]
        if not self._loops.begin(tp, key, sent.id):
            return False
        if all(self._gates[handler.name].clear for handler in route.handlers):
            record = LoopedRecord(tp, outgoing, now)
            if self._run_handlers(Fresh(entry, route, record, Envelope(record), None, now), now):
                return True
        self._loops.add(tp.topic, key, sent.id)
        return False

    def _run_handlers(self, arrival: Arrival, now: float) -> bool:
        """Run all handlers. False: one has failed, and nothing is staged."""
        took: list[tuple[float, Span | None]] = []
        handling(arrival)
        mark = self._staging.begin_trial(arrival.entry)
        try:
            arrival.message = decoded(arrival.route, arrival.record, arrival.envelope)
            began = perf_counter()
            for handler, _ in arrival.handlers:
                if self._attempts.once(arrival, handler, None, now) is not None:
                    self._take_back(arrival.entry, mark)
                    return False
                ended = perf_counter()
                self._attempts.turns.ended(handler.name, arrival, began, ended)
                took.append((ended - began, arrival.attempt.span))
                began = ended
        except (PermanentError, UnknownSchema):  # it fails again when it is read
            return False
        finally:
            self._staging.end_trial()
            handling(None)
        for (handler, _), (seconds, span) in zip(arrival.handlers, took, strict=True):
            self._gates[handler.name].handled(NO_PERMIT, seconds, now)
            if span is not None:
                span.attributes["steadfaust.outcome"] = "succeeded"
                span.end()
        self._staging.counters.handled += 1
        self._staging.counters.looped += 1
        return True

    def _take_back(self, entry: Entry, mark: tuple[int, int]) -> None:
        """Drop what was staged for a message, and what it sends to this lane."""
        for number, message_id in self._loops.take_sent(entry):
            tp, outgoing = entry.sends[number]
            self._loops.remove(tp.topic, outgoing.key or b"", message_id)
        self._staging.take_back(entry, mark)
