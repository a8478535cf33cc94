"""The queues of a lane, read from overlay and store, and staged: what waits, and which heads are due."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from streams.changes import LANE, MESSAGES, QUEUE, QUEUES, QUEUES_BY_DUE, WAITING, Change, store_key
from streams.errors import HandlerFailed
from streams.ports import Store, Write
from streams.staging import Overlay
from streams.waiting import (
    Queue,
    Waiting,
    due_from,
    due_until,
    index_prefix,
    read_message,
    read_queue,
    set_message,
    set_queue,
)


class Queues:
    """Queues by their local keys: partition, handler and ordering key."""

    def __init__(self, store: Store, overlay: Overlay) -> None:
        self._store = store
        self._overlay = overlay

    def committed(self) -> Iterator[tuple[bytes, Queue]]:
        """All that the store has."""
        for local, value in self._store.scan(QUEUES):
            yield local, read_queue(value)

    def get(self, local: bytes) -> Queue | None:
        """A queue, staged or committed; None: there is none."""
        staged = self._overlay.get(LANE, _staged_key(local, QUEUE))
        if staged is not None:
            return staged.row if isinstance(staged.row, Queue) else None
        data = self._store.get(QUEUES, local)
        return None if data is None else read_queue(data)

    def head(self, local: bytes, queue: Queue) -> Waiting:
        """The first message of a queue. Raises HandlerFailed when the store has lost it."""
        return self.message(local, queue.head)

    def message(self, local: bytes, number: int) -> Waiting:
        """A message of a queue, by its number. Raises HandlerFailed when the store has lost it."""
        key = number.to_bytes(8, "big")
        staged = self._overlay.get(LANE, _staged_key(local, WAITING) + key)
        if staged is not None and isinstance(staged.row, Waiting):
            return staged.row
        data = self._store.get(MESSAGES, local + key)
        if data is None:
            raise HandlerFailed(f"message {number} of the queue {local[2:]!r} is not in the store")
        return read_message(data)

    def due(self, handler: str, now: float) -> Generator[tuple[bytes, Queue], None, None]:
        """A handler's queues whose head is due at `now` (epoch seconds), earliest first. Entries of the index
        that are not true any more are dropped on the way.
        """
        prefix = index_prefix(handler.encode())
        stale = []
        try:
            for entry, _ in self._store.scan(QUEUES_BY_DUE, start=prefix, stop=prefix + due_until(now)):
                due = due_from(entry)
                local = store_key(due.partition, due.name)
                queue = self.get(local)
                if queue is not None and queue.due_ms == due.due_ms:
                    yield local, queue
                elif self._overlay.get(LANE, _staged_key(local, QUEUE)) is None:
                    stale.append(Write(QUEUES_BY_DUE, entry, None))
        finally:  # also when the caller has had enough: else they would be passed again at each look
            if stale:
                self._store.apply(stale, {})


def with_message(local: bytes, queue: Queue, number: int, message: Waiting) -> list[Change]:
    """The changes that make a queue what it is, with one more message."""
    name = local[2:]
    return [set_queue(name, queue), set_message(name, number, message)]


def without_head(local: bytes, before: Queue, after: Queue | None) -> list[Change]:
    """The changes that take the head of a queue away."""
    name = local[2:]
    return [set_queue(name, after), set_message(name, before.head, None)]


def _staged_key(local: bytes, kind: bytes) -> bytes:
    return local[:2] + kind + local[2:]
