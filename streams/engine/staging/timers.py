"""Timers: messages that are sent when due, unless cancelled. Rows in the lane, so a crash loses none.

A timer belongs to (handler, key, name). Firing stages the message and removes the timer in one transaction;
the message then arrives on its own topic like any other. The due index is local: an entry whose timer has
been moved or cancelled is recognised when it comes up, and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from itertools import islice
from math import ceil, inf
from typing import NamedTuple

import msgspec

from streams.engine.staging.changes import TIMERS, TIMERS_BY_DUE, Change
from streams.engine.staging.keys import (
    TIME,
    TIMER,
    after_time,
    split_lane_key,
    split_store_key,
    time_in,
    time_key,
)
from streams.model.envelope import TIMER_AFTER, TIMER_DUE
from streams.model.layout import LANE
from streams.model.row_keys import row_key, split_row_key
from streams.ports import Outgoing, Sendable, Store


class Stored(msgspec.Struct, array_like=True, frozen=True):
    """A timer's message as it will be sent: topic, key, value, headers."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Due(NamedTuple):
    """A timer whose time has come. `name` is its changelog key without the kind; `due_ms` since the epoch."""

    partition: int
    name: bytes
    due_ms: int
    topic: str
    outgoing: Outgoing


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode


def timer_name(handler: bytes, key: bytes, name: str) -> bytes:
    """The identity of a timer within its partition."""
    return handler + b"\0" + row_key(key, name.encode())


def timer_key(timer: bytes) -> bytes:
    """The key whose handler has set a timer, from its `timer_name`."""
    key, _ = split_row_key(timer.partition(b"\0")[2])
    return key


def first_due(due: Due) -> float:
    """When a timer was to ring that may have been put off; epoch seconds."""
    said = dict(due.outgoing.headers).get(TIMER_DUE)
    return due.due_ms / 1000 if said is None else datetime.fromisoformat(said.decode()).timestamp()


def latest_due(due: Due, now: float, put_off: float) -> float:
    """The latest time at which a timer may be due by a clock that says `now`; epoch seconds. One that was put
    off is due within `put_off` seconds, one that was set for a duration within that. A date is what it is.
    """
    headers = dict(due.outgoing.headers)
    if TIMER_DUE in headers:
        return now + put_off
    after = headers.get(TIMER_AFTER)
    return inf if after is None else now + float(after)


def set_timer(name: bytes, due: float, topic: str, outgoing: Sendable, after: float = 0.0) -> Change:
    """The change that sets or moves a timer. `due` in epoch seconds; `after` in seconds, for a duration."""
    headers = list(outgoing.headers)
    if after:
        headers.append((TIMER_AFTER, repr(float(after)).encode()))
    stored = Stored(topic, outgoing.key or b"", outgoing.value or b"", headers)
    return Change(LANE, TIMER + name, time_key(ceil(due * 1000)) + _encode(stored))


def remove_timer(name: bytes) -> Change:
    """The change that cancels a timer, or takes away one that has fired."""
    return Change(LANE, TIMER + name, None)


class DueIndex:
    """Looks for timers that are due, each time from where there may be any.

    What has rung or was cancelled leaves tombstones at the beginning of the index until they are compacted:
    to read over those of 100,000 timers takes some ten milliseconds, and a lane looks ten times a second.
    """

    def __init__(self, on_unreadable: Callable[[bytes, Exception], None] = lambda *_: None) -> None:
        """`on_unreadable` is called with the local name of a timer that cannot be read, and the error."""
        self._on_unreadable = on_unreadable
        #: Before this key is no entry of the index.
        self._begin = b""

    def due(
        self, store: Store, now: float, staged: Callable[[bytes], bool]
    ) -> Generator[tuple[Due | None, bytes], None, None]:
        """Timers due at `now` (epoch seconds), earliest first, each with its index key; None in place of a
        timer when its entry is stale: whoever takes it drops that from the store. Close this when it is not
        taken to its end.

        Left out are those of which a change is `staged`, by their local names: most of them ring already, and
        are in the index until that is committed, so they are not read again and again.
        """
        first, reached = None, self._begin
        try:
            for index_key, _ in store.scan(TIMERS_BY_DUE, start=self._begin, stop=_until(now)):
                reached = index_key
                due = None if (waits := staged(after_time(index_key))) else self._timer(store, index_key)
                if first is None and (waits or due is not None):
                    first = index_key
                if not waits:
                    yield due, index_key
            reached = max(reached, _until(now))
        finally:
            self._begin = reached if first is None else first

    def later(self, store: Store, begin: bytes, most: int) -> tuple[list[Due], bytes]:
        """Timers from an index key on, `most` entries of the index, and the key at which to go on; empty: the
        index ends here.
        """
        keys = [key for key, _ in islice(store.scan(TIMERS_BY_DUE, start=begin), most)]
        found = [due for key in keys if (due := self._timer(store, key)) is not None]
        return found, keys[-1] + b"\0" if len(keys) == most else b""

    def written(self, changes: Iterable[Change]) -> None:
        """These are in the store now: one may have set a timer that is due before all that is left."""
        for change in changes:
            if change.value is not None and split_lane_key(change.key)[0] == TIMER:
                self._begin = min(self._begin, change.value[:TIME])

    def _timer(self, store: Store, index_key: bytes) -> Due | None:
        """The timer of an index entry; None when it has been moved or taken away, or cannot be read: then it
        stays, and does not ring.
        """
        value = store.get(TIMERS, after_time(index_key))
        if value is None or time_in(value) != time_in(index_key):
            return None
        partition, name = split_store_key(after_time(index_key))
        try:
            stored = _decode(after_time(value))
        except ValueError as error:
            self._on_unreadable(after_time(index_key), error)
            return None
        outgoing = Outgoing(stored.key, stored.value, stored.headers)
        return Due(partition, name, time_in(value), stored.topic, outgoing)


def _until(now: float) -> bytes:
    """Where the index entries end that are due at `now`."""
    return time_key(int(now * 1000) + 1)
