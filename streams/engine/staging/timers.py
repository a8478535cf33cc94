"""Timers: messages that are sent when due, unless cancelled. They are rows, so a crash loses none.

A timer belongs to (handler, key, name). Firing stages the message and removes the timer in one transaction;
the message then arrives on its own topic like any other. The due index is local: the entry of a timer that
was moved or cancelled is recognised when it comes up, and dropped.
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
    """A timer's message as it will be sent."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Due(NamedTuple):
    """A due timer. `name` is its changelog key without the kind, `due_ms` is in epoch milliseconds."""

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
    """The key of the message whose handler set a timer, from the `timer_name`."""
    key, _ = split_row_key(timer.partition(b"\0")[2])
    return key


def first_due(due: Due) -> float:
    """When a timer was due before any postponement, in epoch seconds."""
    said = dict(due.outgoing.headers).get(TIMER_DUE)
    return due.due_ms / 1000 if said is None else datetime.fromisoformat(said.decode()).timestamp()


def latest_due(due: Due, now: float, put_off: float) -> float:
    """The latest time at which a timer can be due if `now` is right, in epoch seconds. A postponed timer is
    due within `put_off` seconds, one set for a duration within that duration. One set for a date has no
    limit: infinity.
    """
    headers = dict(due.outgoing.headers)
    if TIMER_DUE in headers:
        return now + put_off
    after = headers.get(TIMER_AFTER)
    return inf if after is None else now + float(after)


def set_timer(name: bytes, due: float, topic: str, outgoing: Sendable, after: float = 0.0) -> Change:
    """The change that sets or moves a timer. `due` in epoch seconds, `after` its duration in seconds or 0."""
    headers = list(outgoing.headers)
    if after:
        headers.append((TIMER_AFTER, repr(float(after)).encode()))
    stored = Stored(topic, outgoing.key or b"", outgoing.value or b"", headers)
    return Change(LANE, TIMER + name, time_key(ceil(due * 1000)) + _encode(stored))


def remove_timer(name: bytes) -> Change:
    """The change that cancels a timer, or removes one that has fired."""
    return Change(LANE, TIMER + name, None)


class DueIndex:
    """Finds due timers, and remembers from where on there may be any.

    Timers that fired or were cancelled leave tombstones at the beginning of the index until compaction.
    Reading past those of 100,000 timers takes some ten milliseconds, and a lane looks ten times a second.
    """

    def __init__(self, on_unreadable: Callable[[bytes, Exception], None] = lambda *_: None) -> None:
        """`on_unreadable` is called with the local name of a timer that cannot be read, and the error."""
        self._on_unreadable = on_unreadable
        #: The index has no entry before this key.
        self._begin = b""

    def due(
        self, store: Store, now: float, staged: Callable[[bytes], bool]
    ) -> Generator[tuple[Due | None, bytes], None, None]:
        """Timers due at `now` (epoch seconds), earliest first, each with its index key. For a stale entry the
        timer is None, and the caller must drop the entry from the store. Close this generator if you do not
        read it to its end.

        Timers with a `staged` change, by their local names, are left out. Most of them are firing, and stay
        in the index until that is committed, so they are not read again and again.
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
        """Timers of `most` index entries from the key `begin` on, and the key at which to continue; empty:
        the index ends here.
        """
        keys = [key for key, _ in islice(store.scan(TIMERS_BY_DUE, start=begin), most)]
        found = [due for key in keys if (due := self._timer(store, key)) is not None]
        return found, keys[-1] + b"\0" if len(keys) == most else b""

    def written(self, changes: Iterable[Change]) -> None:
        """Record that the store has these changes now: one may have set a timer that is due before all
        others.
        """
        for change in changes:
            if change.value is not None and split_lane_key(change.key)[0] == TIMER:
                self._begin = min(self._begin, change.value[:TIME])

    def _timer(self, store: Store, index_key: bytes) -> Due | None:
        """The timer of an index entry. None: it was moved or removed, or cannot be read. An unreadable timer
        stays, and does not fire.
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
    """The end of the index entries that are due at `now`."""
    return time_key(int(now * 1000) + 1)
