"""Encode what a handler decided, check its size, and stage it: rows, messages, timers and the inbox entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import structlog
from librt.strings import BytesWriter

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Arrival
from streams.engine.staging.cancels import Cancels
from streams.engine.staging.changes import Change, Pair
from streams.engine.staging.entry import Entry
from streams.engine.staging.inbox import entry_at
from streams.engine.staging.keys import time_key
from streams.engine.staging.loops import Loops, Sent
from streams.engine.staging.payloads import NeedsUpload, Prepared, Upload, Uploads, reference
from streams.engine.staging.timers import remove_timer, set_timer, timer_name
from streams.errors import TooLarge, Unencodable, WiringError, shown
from streams.kafka.records.writing import PackedRecord, sized, write_sized, write_unsigned
from streams.model.bound import BoundHandler, BoundMessage, BoundTable
from streams.model.claim import VALUE, with_claim
from streams.model.envelope import (
    EXPIRY,
    ID,
    RECORD_OVERHEAD,
    SUBJECT,
    TIME,
    WITHIN,
    Caused,
    derived_id,
    headers_size,
    rfc3339,
)
from streams.model.layout import CLAIMS
from streams.model.message import Message
from streams.model.outcome import Outcome, Timer
from streams.model.times import require_span, require_time
from streams.ports import TP, Outgoing, Sendable

log: Final = structlog.get_logger(__name__)

#: Encoded names of headers.
_ID: Final = sized(ID.encode())
_SUBJECT: Final = sized(SUBJECT.encode())
_TIME: Final = sized(TIME.encode())
#: Errors for an outcome that cannot be written, such as a text that is not Unicode, or a number for a list.
_CANNOT_BE_WRITTEN: Final[tuple[type[Exception], ...]] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
    WiringError,
)


class Outcomes:
    """Encodes what handlers return, and stages it."""

    def __init__(self, staging: StagingArea, loops: Loops | None = None) -> None:
        """Without `loops`, the lane reads back everything that it sends to itself."""
        app = staging.app
        self.staging = staging
        self._loops = loops
        self._app = app
        self._limit = app.lane_options.max_message_bytes - RECORD_OVERHEAD
        self._claims = app.claims
        self._cancels = Cancels(staging)
        #: Messages up to this size in bytes need no exact check.
        self._small = self._limit // 2 if app.claims is None else min(self._limit // 2, app.claims.threshold)
        #: The current time in seconds, and encoded for headers and inbox entries: many messages share it.
        self._now = -1.0
        self._millisecond = -1
        self._time = self._time_key = b""

    def stage(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        outcome: object,
        inbox_key: bytes | None,
        now: float,
        uploads: Uploads = None,
    ) -> Prepared | None:
        """Stage an outcome. Everything is encoded and its size checked before any of it is staged
        (docs/guarantee.md). If payloads must be written first, the outcome is returned for `put_prepared`; if
        `uploads` is None, NeedsUpload is raised instead. `now` in epoch seconds.

        Raises TooLarge, or Unencodable if the outcome cannot be written or sends an undeclared message.
        """
        if not isinstance(outcome, Outcome):
            raise Unencodable(
                f"{handler.name} returned {type(outcome).__name__}: return outcome(...) or nothing(...)"
            )
        try:
            return self._stage(arrival, handler, outcome, inbox_key, now, uploads)
        except _CANNOT_BE_WRITTEN as error:
            what = f"{handler.name} returned something that cannot be written: {shown(error)}"
            raise Unencodable(what) from error

    def _stage(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        outcome: Outcome,
        inbox_key: bytes | None,
        now: float,
        uploads: Uploads,
    ) -> Prepared | None:
        entry = arrival.entry
        if now != self._now:
            self._set_time(now)
        changes: list[Change] = []
        for parameter, row in outcome.rows.items():
            self._add_rows(changes, handler, parameter, row, arrival)
        sends: list[tuple[TP, Sendable]] = []
        send, timers, cancel = outcome.send, outcome.timers, outcome.cancel
        cancelled: dict[str, bytes] = {}
        if cancel:  # may be a generator, which is true even if it yields nothing
            if isinstance(cancel, str):  # each of its letters would count as a name
                raise TypeError(f"cancel={cancel!r}: give the names of timers in a list")
            cancelled = {name: timer_name(handler.name_bytes, arrival.key, name) for name in cancel}
            changes += [remove_timer(name) for name in cancelled.values()]
        if send or timers:  # after the cancels, so that a timer which is set again stays
            uploads = self._add_messages(changes, sends, handler, send, timers, arrival, uploads)
        if cancelled:
            self._cancels.look(arrival, handler.name, cancelled)
        for change in changes:
            if (size := len(change.key) + len(change.value or b"")) > self._limit:
                raise self._too_large(handler, f"a row of {change.table}", size)
        ids: list[Pair] = []
        if inbox_key is not None:
            ids = [entry_at(inbox_key, self._time_key, outcome.note.encode()[:200])]
        if uploads:
            return Prepared(changes, ids, sends, uploads)
        if self._loops is not None and (own := self._own(sends, len(entry.sends))):
            self._loops.add_sent(entry, own)
        self.staging.put(entry, changes)
        entry.ids = entry.ids + ids if entry.ids else ids
        entry.sends = entry.sends + sends if entry.sends else sends
        return None

    def _set_time(self, now: float) -> None:
        """Set the time of what is staged from here on, in epoch seconds."""
        millisecond = int(now * 1000)
        if millisecond != self._millisecond:
            self._time, self._time_key = rfc3339(now).encode(), time_key(millisecond)
            self._millisecond = millisecond
        self._now = now

    def _add_messages(
        self,
        changes: list[Change],
        sends: list[tuple[TP, Sendable]],
        handler: BoundHandler,
        send: Sequence[Message],
        timers: Sequence[Timer],
        arrival: Arrival,
        uploads: Uploads,
    ) -> Uploads:
        """Add the messages to send, and the changes of timers. Returns `uploads` with their payloads."""
        key, span, index = arrival.key, arrival.attempt.span, 0
        caused = arrival.envelope.caused(None if span is None else span.header)
        is_at_home = arrival.route.source is None  # others put their keys wherever they like
        for message in send:
            bound, to, sent, uploads = self._outgoing(handler, message, arrival, caused, index, uploads)
            partition = arrival.entry.partition
            if to != key or not is_at_home:
                if bound.same_key:
                    raise _strays(handler, bound)
                partition = self._app.layout.partition_of(to)
            sends.append((bound.partitions[partition], sent))
            index += 1
        for timer in timers:
            require_time(f"due of the timer {timer.name!r}", timer.due)
            require_span(f"after of the timer {timer.name!r}", timer.after)
            due = timer.due or self._now + timer.after
            require_time(f"now and after of the timer {timer.name!r}", due)
            bound, to, sent, uploads = self._outgoing(
                handler, timer.message, arrival, caused, index, uploads, due
            )
            if bound.same_key and to != key:
                raise _strays(handler, bound)
            if bound.topic not in self._app.routes:
                self._warn_unheard(handler, timer.message)
            self._cancels.note_set(handler.name, timer.name)
            name = timer_name(handler.name_bytes, key, timer.name)
            changes.append(set_timer(name, due, bound.topic, sent, timer.after))
            index += 1
        return uploads

    def _warn_unheard(self, handler: BoundHandler, message: Message) -> None:
        """Warn once that no line of the wiring takes a timer's message. The wiring itself cannot check this,
        because `sends` does not tell timers and messages apart.
        """
        told = (handler.name, message.TOPIC)
        if told in self._app.unheard_timers:
            return
        self._app.unheard_timers.add(told)
        name = type(message).__name__
        log.warning(
            "timer_without_line",
            handler=handler.name,
            message=name,
            topic=message.TOPIC,
            action=f"add on({name}, ...), unless another application takes it",
        )

    def _own(self, sends: Sequence[tuple[TP, Sendable]], first: int) -> Sequence[Sent]:
        """Record which of these messages go back to this lane. They are numbered from `first`."""
        loops = self._loops
        if loops is None or not sends:
            return ()
        sent = []
        for number, (tp, outgoing) in enumerate(sends, first):
            if tp.topic in loops.topics:
                message_id = outgoing.headers[0][1]
                loops.add(tp.topic, outgoing.key or b"", message_id)
                sent.append(Sent(number, message_id))
        return sent

    def put_prepared(self, entry: Entry, prepared: Prepared) -> list[Change]:
        """Stage an outcome after its payloads were written. Returns references that an entry staged meanwhile
        removes. That entry may be committed later, so the caller must stage them again after it.
        """
        names = [reference(upload.claim.name, upload.needed) for upload in prepared.uploads]
        staged = [(name, self.staging.get(CLAIMS, entry.prefix + name.key)) for name in names]
        self.staging.put(entry, [*prepared.changes, *names])
        entry.ids += prepared.ids
        entry.sends += prepared.sends
        self._own(prepared.sends, 0)  # only now, because after a failed upload the handler runs again
        return [name for name, change in staged if change is not None and change.value is None]

    def _add_rows(
        self, changes: list[Change], handler: BoundHandler, name: str, row: Any, arrival: Arrival
    ) -> None:
        """Add the changes that an outcome makes to the rows of one parameter."""
        table, subkey, any_row = handler.table_of(name)
        key = arrival.row_key()
        if any_row:
            changes += [self._change(table, key + sub.encode(), one) for sub, one in row.items()]
        else:
            own = key if subkey is None else key + subkey(arrival.message).encode()
            changes.append(self._change(table, own, row))

    @staticmethod
    def _change(table: BoundTable, key: bytes, row: Any) -> Change:
        try:
            value = None if row is None else table.row_prefix + table.codec.encode(row)
            return Change(table.name, key, value, row)
        except Unencodable as error:
            raise Unencodable(f"a row of table {table.name}: {error}") from error

    def _too_large(self, handler: BoundHandler, what: str, size: int) -> TooLarge:
        return TooLarge(f"{handler.name}: {what} has {size} bytes, the limit is {self._limit}")

    def _outgoing(
        self,
        handler: BoundHandler,
        message: Any,
        arrival: Arrival,
        caused: Caused,
        index: int,
        uploads: Uploads,
        needed: float = 0.0,
    ) -> tuple[BoundMessage, bytes, Sendable, Uploads]:
        """Encode a message. Returns its declaration, its key, its record, and `uploads`, with its payload
        added if that travels by reference.
        """
        bound = handler.sends.get(type(message))
        if bound is None:
            raise WiringError(
                f"{handler.name} sent {type(message).__name__}, which it is not declared to send"
            )
        key: bytes = message.key.encode()
        value: bytes = bound.codec.encode(message)
        own_id = derived_id(arrival.envelope.identity, handler.name_bytes, index)
        more: list[tuple[str, bytes]] = []
        if bound.expires and (until := getattr(message, bound.expires)):
            require_time(f"{bound.expires} of {type(message).__name__}", until)
            more.append((EXPIRY, rfc3339(until).encode()))
        if bound.within and (seconds := getattr(message, bound.within)):
            require_span(f"{bound.within} of {type(message).__name__}", seconds)
            more.append((WITHIN, b"%g" % seconds))
        sent: Any  # compiled code would take a `Sendable` for a PackedRecord behind the branches
        # The exact size is computed only if it may matter. Only headers from outside can be large.
        large = 2 * len(key) + len(value) + caused.size > self._small  # the key is a header, too
        if large or bound.binary or needed or (self._loops is not None and bound.topic in self._loops.topics):
            headers = [(ID, own_id), (SUBJECT, key), (TIME, self._time), *bound.headers]
            outgoing = Outgoing(key, value, [*headers, *caused.pairs(), *more])
            if large or bound.binary:
                at = max(self._now, needed)
                outgoing, uploads = self._fitted(handler, bound, message, outgoing, uploads, at)
            sent = outgoing
        else:  # nothing in this lane reads the record, so it is packed at once
            sent = self._packed(bound, key, value, own_id, caused, more)
        if bound.logged:
            level, event, fields = message.log_line()
            getattr(log, level)(event, handler=handler.name, **fields)
        return bound, key, sent, uploads

    def _packed(
        self,
        bound: BoundMessage,
        key: bytes,
        value: bytes,
        own_id: bytes,
        caused: Caused,
        more: list[tuple[str, bytes]],
    ) -> PackedRecord:
        to = BytesWriter()
        write_sized(to, key)
        write_sized(to, value)
        write_unsigned(to, 2 * (3 + len(bound.headers) + caused.number + len(more)))
        to.write(_ID)
        write_sized(to, own_id)
        to.write(_SUBJECT)
        write_sized(to, key)
        to.write(_TIME)
        write_sized(to, self._time)
        to.write(bound.packed)
        caused.write(to)
        for name, data in more:
            write_sized(to, name.encode())
            write_sized(to, data)
        return PackedRecord(to.getvalue())

    def _fitted(
        self,
        handler: BoundHandler,
        bound: BoundMessage,
        message: Any,
        outgoing: Outgoing,
        uploads: Uploads,
        needed: float,
    ) -> tuple[Outgoing, Uploads]:
        """Fit a large or binary message into a record, by reference if claim checks require it. Raises
        TooLarge or NeedsUpload.
        """
        key, value, headers = outgoing.key or b"", outgoing.value or b"", outgoing.headers
        claims, rest = self._claims, len(key) + headers_size(headers)
        if claims is not None and claims.is_due(len(value), rest, limit=self._limit, binary=bound.binary):
            if uploads is None:
                raise NeedsUpload(len(value))
            own_id = dict(headers)[ID].decode()
            claim = claims.claim(bound.topic, own_id, value, bound.codec.content_type)
            uploads = (*uploads, Upload(claim, value, needed))
            headers, value = with_claim(headers, claim), VALUE
            rest = len(key) + headers_size(headers)
        if len(value) + rest > self._limit:
            raise self._too_large(handler, type(message).__name__, len(value) + rest)
        return Outgoing(key, value, headers), uploads


def _strays(handler: BoundHandler, bound: BoundMessage) -> WiringError:
    return WiringError(
        f"{handler.name} sends {bound.topic}, which is declared SAME_KEY, under another key than it was"
        " called with"
    )
