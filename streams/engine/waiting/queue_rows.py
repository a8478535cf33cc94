"""The queues of a lane, staged or committed: what waits, and which heads are due."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from heapq import merge
from itertools import islice
from typing import Final

from streams.engine.staging.area import StagingArea
from streams.engine.staging.changes import MESSAGES, QUEUES, QUEUES_BY_DUE
from streams.engine.staging.keys import (
    QUEUE,
    TIME,
    WAITING,
    after_time,
    local_lane_key,
    name_in,
    prefix_in,
    split_local_lane_key,
    split_queue_entry,
)
from streams.engine.waiting.queue import (
    APART,
    WaitingMessage,
    WaitingQueue,
    due_until,
    handler_of,
    index_prefix,
    place_of,
    queue_name,
    read_message,
    read_queue,
)
from streams.errors import RowUnreadable
from streams.model.layout import LANE

#: Later than anything is due, in epoch seconds.
END_OF_TIME: Final = 1e15
#: Entries of partitions in which a handler is paused that one look passes: a lane in which it is paused in
#: some partitions only is not to stand still for them.
MOST_PASSED: Final = 5_000


class Queues:
    """Queues by their local keys: partition, handler and ordering key."""

    def __init__(self, staging: StagingArea) -> None:
        self._staging = staging
        self._store = staging.store
        #: Where a look at parts of the index goes on that had passed too many entries.
        self._from: dict[tuple[bytes, ...], bytes] = {}

    def committed(self) -> Iterator[tuple[bytes, WaitingQueue | None]]:
        """All that the store has; None for one that cannot be read."""
        for local, value in self._store.scan(QUEUES):
            yield local, self._read(local, value)

    def get(self, local: bytes) -> WaitingQueue | None:
        """A queue, staged or committed; None: there is none, or it cannot be read."""
        staged = self._staging.get(LANE, local_lane_key(QUEUE, local))
        if staged is not None:
            return staged.row if isinstance(staged.row, WaitingQueue) else None
        data = self._store.get(QUEUES, local)
        return None if data is None else self._read(local, data)

    def _read(self, local: bytes, data: bytes) -> WaitingQueue | None:
        try:
            return read_queue(data)
        except ValueError as error:
            what = f"the queue {name_in(local)!r} of messages that wait"
            follows = "they keep waiting, and later messages of the key become dead letters"
            self._staging.unreadable.own(QUEUES, local, what, error, follows)
            return None

    def head(self, local: bytes, queue: WaitingQueue) -> WaitingMessage:
        """The first message of a queue. Raises RowUnreadable."""
        return self.message(local, queue.head)

    def message(self, local: bytes, number: int) -> WaitingMessage:
        """A message of a queue, by its number. Raises RowUnreadable, also when the store has lost it."""
        key = number.to_bytes(8, "big")
        staged = self._staging.get(LANE, local_lane_key(WAITING, local) + key)
        if staged is not None and isinstance(staged.row, WaitingMessage):
            return staged.row
        data = self._store.get(MESSAGES, local + key)
        try:
            return read_message(data or b"")
        except ValueError as error:
            what = f"message {number} of the queue {name_in(local)!r}"
            self._staging.unreadable.own(
                MESSAGES, local + key, what, error, "later ones of its key wait behind it"
            )
            raise RowUnreadable(f"{what} is lost, or cannot be read: {error!r}") from error

    def of_key(self, partition: bytes, handler: bytes, key: bytes) -> Iterator[tuple[bytes, WaitingQueue]]:
        """The queues of a handler and a message key, whatever it orders by within the key: callers need
        not know. `partition` as local keys have it.
        """
        begin = partition + queue_name(handler, key)
        found = {
            own
            for local, _ in self._staging.changes(LANE)
            for kind, own in (split_local_lane_key(local),)
            if kind == QUEUE and own.startswith(begin)
        }
        for local, _ in self._store.scan(QUEUES, start=begin):
            if not local.startswith(begin):
                break
            found.add(local)
        for local in sorted(found):
            queue = self.get(local)
            if queue is not None:
                yield local, queue

    def due_some_time(self, handler: str, most: int, unroutable: Collection[bytes] = ()) -> Iterator[bytes]:
        """A handler's queues that are tried by themselves, now or later, except those in APART and those that
        are `unroutable`; `most` of those that are committed. One may come twice.
        """
        name = handler.encode()
        for local, change in self._staging.changes(LANE):
            kind, own = split_local_lane_key(local)
            if kind != QUEUE or handler_of(name_in(own)) != name:
                continue
            queue = change.row
            is_due = isinstance(queue, WaitingQueue) and queue.due_ms and queue.reason not in APART
            if is_due and own not in unroutable:
                yield own
        with closing(self.due({index_prefix(name): ()}, END_OF_TIME)) as committed:
            yield from islice((local for local, _ in committed if local not in unroutable), most)

    def due(
        self, skipped: Mapping[bytes, Collection[bytes]], now: float
    ) -> Generator[tuple[bytes, WaitingQueue], None, None]:
        """Queues whose head is due at `now` (epoch seconds), earliest first. `skipped` has a handler's
        prefixes in the index that are looked at, each with the partitions that are left out, as they stand
        in local keys. Entries of the index that are not true any more are dropped on the way.
        """
        until, parts = due_until(now), tuple(skipped)
        begin = self._from.pop(parts, b"")
        scans = [self._store.scan(QUEUES_BY_DUE, start=part + begin, stop=part + until) for part in parts]
        stale = []
        passed = 0
        try:
            for entry, _ in merge(*scans, key=_time_and_name):
                place, local = split_queue_entry(entry)
                if prefix_in(local) in skipped[place[:TIME]]:
                    passed += 1
                    if passed == MOST_PASSED:
                        # The next look begins here, the one after it anew.
                        self._from[parts] = after_time(entry)
                        return
                    continue
                queue = self.get(local)
                if queue is not None and place_of(name_in(local), queue) == place:
                    yield local, queue
                elif self._staging.get(LANE, local_lane_key(QUEUE, local)) is None:
                    stale.append((QUEUES_BY_DUE, entry, None))
        finally:  # also when the caller has had enough: else they would be passed again at each look
            if stale:
                self._store.apply(stale, {})


def _time_and_name(pair: tuple[bytes, bytes]) -> bytes:
    return after_time(pair[0])
