"""Changes to a lane's state: each is a changelog record, and the local store is a function of those records.

The same function makes the store's writes after a commit, in recovery and on a standby, so that a table
rebuilt from its changelog equals the copy that was written live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec

from streams.ports import Write

#: Built-in tables beside the application's own; their changelogs are named alike.
INBOX = "inbox"  # ids of what has been handled; the local copy is cut into time buckets
LANE = "lane"  # source positions, timers, and messages that wait

POSITION = b"p"
TIMER = b"t"
QUEUE = b"q"
WAITING = b"w"

#: Local tables that the LANE changelog spreads into.
POSITIONS = "_positions"
TIMERS = "_timers"
TIMERS_BY_DUE = "_timers_by_due"
QUEUES = "_queues"
QUEUES_BY_DUE = "_queues_by_due"
MESSAGES = "_waiting"


class Change(msgspec.Struct, frozen=True):
    """One changelog record to be: `value` None deletes. `row` is the decoded value, kept for later reads."""

    table: str
    key: bytes
    value: bytes | None
    row: Any = None


@cache
def prefix_of(partition: int) -> bytes:
    """What the local keys of a partition begin with: its rows lie together."""
    return partition.to_bytes(2, "big")


def store_key(partition: int, key: bytes) -> bytes:
    """The local key of a changelog key."""
    return prefix_of(partition) + key


def split_store_key(data: bytes) -> tuple[int, bytes]:
    """The (partition, changelog key) of a local key."""
    return int.from_bytes(data[:2], "big"), data[2:]


class Writes:
    """Turns changelog records into writes to the local store."""

    def __init__(self, inbox_bucket: float) -> None:
        """`inbox_bucket` is the length of an inbox time bucket, in seconds."""
        self._bucket_ms = max(1, int(inbox_bucket * 1000))

    def inbox_table(self, time_ms: int) -> str:
        """The local table of inbox entries made at a time."""
        return f"_inbox-{time_ms // self._bucket_ms:08d}"

    def of(
        self, table: str, partition: int, records: Iterable[tuple[bytes, bytes | None]]
    ) -> Iterator[Write]:
        """The writes for records of a table's changelog partition."""
        prefix = prefix_of(partition)
        return self.local(table, ((prefix + key, value) for key, value in records))

    def local(self, table: str, records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Write]:
        """The writes for records whose keys are local already."""
        if table == INBOX:
            for key, value in records:
                if value is not None:
                    yield Write(self.inbox_table(int.from_bytes(value[:8], "big")), key, value[8:])
        elif table == LANE:
            for key, value in records:
                yield from self._lane(key, value)
        else:
            for key, value in records:
                yield Write(table, key, value)

    @staticmethod
    def _lane(key: bytes, value: bytes | None) -> Iterator[Write]:
        kind, name = key[2:3], key[:2] + key[3:]
        if kind == POSITION:
            yield Write(POSITIONS, name, value)
        elif kind == TIMER:
            yield Write(TIMERS, name, value)
            if value is not None:  # a moved or cancelled timer's old entry is found stale when it comes up
                yield Write(TIMERS_BY_DUE, value[:8] + name, b"")
        elif kind == QUEUE:
            yield Write(QUEUES, name, value)
            if value is not None and any(
                value[8:16]
            ):  # as above; a queue without a time is not due by itself
                yield Write(QUEUES_BY_DUE, value[:16] + name, b"")
        elif kind == WAITING:
            yield Write(MESSAGES, name, value)
