"""Read the queues of a lane, staged or committed, and find due heads."""

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

#: Later than any due time, in epoch seconds.
END_OF_TIME: Final = 1e15
#: Maximum entries of paused partitions that one scan skips, so that a handler that is paused in some
#: partitions does not block the lane.
MOST_PASSED: Final = 5_000


class Queues:
    """Queues by their local keys: partition, handler and ordering key."""

    def __init__(self, staging: StagingArea) -> None:
        self._staging = staging
        self._store = staging.store
        #: Where to continue a scan that skipped too many entries, by the parts of the index.
        self._from: dict[tuple[bytes, ...], bytes] = {}

    def committed(self) -> Iterator[tuple[bytes, WaitingQueue | None]]:
        """All queues in the store, with their local keys; None for a queue that cannot be read."""
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
        """The queues of a handler and a message key, for all ordering keys within it. `partition` is encoded
        as in local keys.
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
        """A handler's queues that are due now or later, except those in APART and those that are
        `unroutable`. At most `most` of the committed ones. A queue may come twice.
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
        """Queues with a head due at `now` (epoch seconds), earliest first. `skipped` has the prefixes of a
        handler in the due index, each with the partitions to leave out, encoded as in local keys. Stale
        entries of the index are dropped on the way.
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
                        # The next scan continues here, the one after it begins at the start.
                        self._from[parts] = after_time(entry)
                        return
                    continue
                queue = self.get(local)
                if queue is not None and place_of(name_in(local), queue) == place:
                    yield local, queue
                elif self._staging.get(LANE, local_lane_key(QUEUE, local)) is None:
                    stale.append((QUEUES_BY_DUE, entry, None))
        finally:  # also if the caller stops early, or each scan would read the stale entries again
            if stale:
                self._store.apply(stale, {})


def _time_and_name(pair: tuple[bytes, bytes]) -> bytes:
    return after_time(pair[0])
