"""Messages that handlers send to their own lane are handled in the same transaction (docs/adr/0046).

Only if they run straight through. A message whose handler fails or waits, or has a payload to be written, is
taken back, and handled when the lane has read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from streams.errors import HandlerFailed, StoreFailed
from streams.lane.attempt import Attempts, call
from streams.lane.turns import Turns
from streams.logs import HANDLED
from streams.model.envelope import LOOPBACK, Envelope
from streams.ports import TP, Headers, Outgoing
from streams.retry.gate import NO_PERMIT
from streams.staging.arrival import Arrival
from streams.staging.decoding import decoded
from streams.staging.entry import Entry
from streams.staging.loops import Loops, Sent
from streams.tracing.span import Span

#: Messages that are handled with one that was read, at most: all of them are one turn, and one transaction.
MOST = 32
#: And for how long, in seconds: the rest is read back, so that others have their turn.
TURN = 0.05
#: Of which offset a message is that has none yet.
UNWRITTEN = -1


class LoopedRecord:
    """A record that is staged, as its lane will read it."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "topic", "value")

    def __init__(self, tp: TP, outgoing: Outgoing, now: float) -> None:
        self.topic, self.partition = tp
        self.offset = UNWRITTEN
        self.timestamp = int(now * 1000)
        self.key: bytes | None = outgoing.key
        self.value: bytes | None = outgoing.value
        self.headers: Headers = outgoing.headers


class Loopback:
    """The loopback of one lane, between one opening and the next."""

    def __init__(self, attempts: Attempts, loops: Loops, limit: Callable[[], int]) -> None:
        """`limit` returns how many messages a transaction may have now."""
        waiting = attempts.waiting
        app = waiting.staging.app
        self._mark = (LOOPBACK, app.layout.app_id.encode())
        self._routes = app.routes
        self._gates = waiting.gates
        self._outcomes = waiting.outcomes
        self._staging = waiting.staging
        self._loops = loops
        self._limit = limit
        self._clock = attempts.clock
        self._spans = attempts.spans
        self._turns = Turns(waiting.staging.counters)

    def complete(self, arrival: Arrival) -> None:
        """A message is handled, or waits for a handler: handle what it sends to its own lane, and what those
        messages send, in the order in which they are written. Raises HandlerFailed or StoreFailed.
        """
        if arrival.route.loops:
            self._loops.remove_read(arrival.record)
        entry = arrival.entry
        if entry.looped is None:
            return
        sent, now = list(_taken_from(entry)), self._clock.now()
        at, until, most = 0, perf_counter() + TURN, min(MOST, self._limit() - 1)
        while at < min(len(sent), most) and perf_counter() < until:
            tp, outgoing = entry.sends[sent[at].number]
            if self._handle(entry, tp, outgoing, sent[at], now):
                marked = outgoing._replace(headers=[*outgoing.headers, self._mark])
                entry.sends[sent[at].number] = (tp, marked)
                entry.messages += 1
                sent += _taken_from(entry)
            at += 1

    def _handle(self, entry: Entry, tp: TP, outgoing: Outgoing, sent: Sent, now: float) -> bool:
        key = outgoing.key or b""
        self._loops.remove_sent(tp.topic, key, sent.id)
        if self._loops.may_loop(tp, key):
            route = self._routes[tp.topic]
            if all(self._gates[handler.name].clear for handler in route.handlers):
                record = LoopedRecord(tp, outgoing, now)
                if self._run_handlers(Arrival(entry, route, record, Envelope(record), None, now), now):
                    return True
        self._loops.add_sent(tp.topic, key, sent.id)
        return False

    def _run_handlers(self, arrival: Arrival, now: float) -> bool:
        """Run all handlers; False: nothing was staged."""
        entry, staging = arrival.entry, self._staging
        HANDLED.set(arrival)
        mark, took, spans = staging.begin_trial(entry), [], []
        began = perf_counter()
        try:
            arrival.message = decoded(arrival.route, arrival.record, arrival.envelope)
            for handler, _ in arrival.handlers:
                if self._spans is not None:
                    arrival.span = self._spans.begin_attempt(arrival, handler.name, 1)
                    spans.append(arrival.span)
                outcome = call(staging, arrival, handler)
                self._outcomes.stage(arrival, handler, outcome, None, now)
                ended = self._turns.ended(handler.name, arrival, began)
                took.append(ended - began)
                began = ended
        except (HandlerFailed, StoreFailed):  # no message is to blame
            raise
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - it fails again when it was read, and is told
            for number, message_id in _taken_from(entry):
                tp, outgoing = entry.sends[number]
                self._loops.remove_sent(tp.topic, outgoing.key or b"", message_id)
            staging.take_back(entry, mark)
            return False
        finally:
            staging.end_trial()
            HANDLED.set(None)
        self._succeeded(arrival, took, spans, now)
        return True

    def _succeeded(self, arrival: Arrival, took: list[float], spans: list[Span | None], now: float) -> None:
        for (handler, _), seconds in zip(arrival.handlers, took, strict=True):
            self._gates[handler.name].handled(NO_PERMIT, seconds, now)
        for span in filter(None, spans):
            span.attributes["steadfaust.outcome"] = "succeeded"
            span.end()
        counters = self._staging.counters
        counters.handled += 1
        counters.looped += 1


def _taken_from(entry: Entry) -> list[Sent]:
    """Take the messages of an entry that are to be handled at once."""
    looped = entry.looped
    entry.looped = None
    return looped or []
