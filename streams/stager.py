"""Stages what a handler decided: rows, messages, timers, the inbox entry; encoded and within limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams.application import Application, BoundHandler, BoundMessage, BoundRoute
from streams.arrival import Arrival, Counters
from streams.changes import Change
from streams.codecs import encode_row
from streams.dead_letters import dead_letter
from streams.envelope import ID, SUBJECT, TIME, TIMER_DUE, derived_id, headers_size, rfc3339
from streams.errors import TooLarge, WiringError
from streams.inbox import Inbox
from streams.outcome import Outcome
from streams.ports import TP, Outgoing, Record
from streams.staging import Entry, Overlay
from streams.table import row_key
from streams.timers import Due, remove_timer, set_timer, timer_name

#: What a record takes beside key, value and headers, and its share of the batch's frame; generous.
RECORD_OVERHEAD = 512


class Stager:
    """Writes to entries and to the overlay; nothing of it has happened yet."""

    def __init__(self, app: Application, overlay: Overlay, counters: Counters) -> None:
        self.counters = counters
        self.now = 0.0
        self._app = app
        self._overlay = overlay
        self._limit = app.delivery.max_message_bytes - RECORD_OVERHEAD
        self._time = b""

    def at(self, now: float) -> None:
        """The time of what is staged from here on, in epoch seconds."""
        self.now = now
        self._time = rfc3339(now).encode()

    def stage(
        self, arrival: Arrival, handler: BoundHandler, outcome: Outcome, inbox_key: bytes | None
    ) -> None:
        """Everything is encoded and its size checked before any of it is staged (design rule 8)."""
        record, entry = arrival.record, arrival.entry
        key = record.key or b""
        changes = [self._change(handler, name, row, arrival) for name, row in outcome.rows.items()]
        sends = []
        if outcome.send or outcome.timers:
            caused = arrival.envelope.caused()
            for index, message in enumerate(outcome.send):
                bound, outgoing = self._outgoing(handler, message, arrival, caused, index)
                same = outgoing.key == key
                partition = entry.partition if same else self._app.layout.partition_of(outgoing.key or b"")
                sends.append((bound.partitions[partition], outgoing))
            for index, timer in enumerate(outcome.timers, len(outcome.send)):
                bound, outgoing = self._outgoing(handler, timer.message, arrival, caused, index)
                name = timer_name(handler.name_bytes, key, timer.name)
                change = set_timer(name, timer.due, bound.topic, outgoing)
                if change.value is not None and len(change.key) + len(change.value) > self._limit:
                    raise self._too_large(handler, f"timer {timer.name}", change.value)
                changes.append(change)
        changes.extend(remove_timer(timer_name(handler.name_bytes, key, name)) for name in outcome.cancel)
        if inbox_key is not None:
            changes.append(Inbox.entry(inbox_key, int(self.now * 1000), outcome.note.encode()[:200]))
        self.put(entry, changes)
        entry.sends.extend(sends)

    def put(self, entry: Entry, changes: Sequence[Change]) -> None:
        """Add changes to an entry, and let later reads see them."""
        prefix = entry.prefix
        for change in changes:
            local = prefix + change.key
            self._overlay.put(local, change)
            entry.changes.append((local, change))

    def _change(self, handler: BoundHandler, name: str, row: Any, arrival: Arrival) -> Change:
        table, subkey = handler.table_of(name)
        sub = subkey(arrival.message).encode() if subkey else b""
        key = row_key(arrival.record.key or b"", sub)
        value = None if row is None else encode_row(table.codec, row)
        if value is not None and len(key) + len(value) > self._limit:
            raise self._too_large(handler, f"row {name}", value)
        return Change(table.name, key, value, row)

    def _too_large(self, handler: BoundHandler, what: str, value: bytes) -> TooLarge:
        return TooLarge(f"{handler.name}: {what} has {len(value)} bytes, the limit is {self._limit}")

    def _outgoing(
        self,
        handler: BoundHandler,
        message: Any,
        arrival: Arrival,
        caused: Sequence[tuple[str, bytes]],
        index: int,
    ) -> tuple[BoundMessage, Outgoing]:
        bound = handler.sends.get(type(message))
        if bound is None:
            raise WiringError(
                f"{handler.name} sent {type(message).__name__}, which it is not declared to send"
            )
        key = message.key.encode()
        value = bound.codec.encode(message)
        own_id = derived_id(arrival.envelope.identity, handler.name_bytes, index)
        headers = [(ID, own_id), (SUBJECT, key), (TIME, self._time), *bound.headers, *caused]
        # Summed up exactly only when it could matter. Of the headers, what came from outside can be large.
        outside = len(caused[1][1]) + len(caused[2][1]) + len(caused[-1][1])
        size = len(key) + len(value)
        if size + outside > self._limit // 2 and size + headers_size(headers) > self._limit:
            raise self._too_large(handler, type(message).__name__, value)
        return bound, Outgoing(key, value, headers)

    def give_up(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        error: Exception,
        inbox_key: bytes | None,
        attempts: int = 0,
    ) -> None:
        """The message is settled for this handler, as a dead letter; the other handlers are not concerned."""
        self.bury(arrival.entry, arrival.route, arrival.record, error, handler.name, attempts)
        if inbox_key is not None:
            mark = Inbox.entry(inbox_key, int(self.now * 1000), b"dead letter")
            self.put(arrival.entry, [mark])

    def bury(
        self,
        entry: Entry,
        route: BoundRoute,
        record: Record,
        error: Exception,
        handler: str,
        attempts: int = 0,
    ) -> None:
        """Add the record to an entry as a dead letter, as it came. `handler` is empty when none saw it."""
        self.counters.dead_letters += 1
        group = self._app.layout.app_id
        limit = self._app.delivery.max_message_bytes
        letter = dead_letter(
            record,
            error,
            group=group,
            handler=handler,
            now=self.now,
            limit=limit,
            retries=max(attempts - 1, 0),
        )
        entry.sends.append((TP(route.dead_letters, 0), letter))

    def fire(self, due: Due, now: float) -> Entry:
        """An entry that sends a due timer's message and takes the timer away."""
        entry = Entry(due.partition, None, 0)
        headers = [header for header in due.outgoing.headers if header[0] != TIME]
        headers += [
            (TIME, rfc3339(now).encode()),
            (TIMER_DUE, rfc3339(due.due_ms / 1000).encode()),
        ]
        key = due.outgoing.key or b""
        outgoing = Outgoing(key, due.outgoing.value, headers)
        entry.sends.append((TP(due.topic, self._app.layout.partition_of(key)), outgoing))
        self.put(entry, [remove_timer(due.name)])
        entry.done = True
        self.counters.timers += 1
        return entry
