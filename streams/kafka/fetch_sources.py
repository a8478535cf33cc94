"""The partitions that a fetcher reads, and the brokers that lead them."""

from __future__ import annotations

import asyncio
from itertools import islice
from math import inf
from time import monotonic
from typing import Any

from streams.kafka.fetch_sessions import FetchSession
from streams.kafka.partition_records import FetchedRecords, IsolatingRecords, Isolation
from streams.ports import NO_EPOCH, TP, Record

#: An answer with fewer bytes is small; after one, a reader pauses for 20 to 30 ms (see `Leader.rest`).
_LITTLE = 64 << 10
_REST, _LONGEST_REST = 0.02, 0.03
_READ_COMMITTED = 1


class Place:
    """How far a partition has been read.

    Attributes:
        position: the offset of the next record to take.
        epoch: the leader epoch of the records before it; NO_EPOCH if unknown.
        end, stable: the log's end and its last stable offset in the last answer; None before the first one.
    """

    __slots__ = ("_records", "end", "epoch", "position", "stable", "tp")

    def __init__(self, tp: TP, position: int, epoch: int = NO_EPOCH) -> None:
        self.tp = tp
        self.position = position
        self.epoch = epoch
        self.end: int | None = None
        self.stable: int | None = None
        self._records: Any = None

    def fill(self, records: FetchedRecords, aborted: list[tuple[int, int]], isolation: Isolation) -> None:
        """Add fetched records. `take` returns those from the position on, without `aborted` transactions."""
        self._records = IsolatingRecords(
            self.tp, records, aborted, self.position, None, None, isolation, _READ_COMMITTED
        )

    def take(self, most: int) -> tuple[list[Record], bool]:
        """Up to `most` records, and whether all fetched records have now been taken. The position moves past
        them, and past records that readers do not see. Raises an error only if it comes before any progress.
        """
        records: list[Record] = []
        is_all = False
        try:
            for record in islice(self._records, most):
                records.append(record)  # noqa: PERF402 - those before one that raises are kept
            is_all = len(records) < most
        except Exception:
            is_all = True
            if self._records.next_fetch_offset == self.position:
                self._records = None
                raise
        self.position = self._records.next_fetch_offset
        if self._records.epoch != NO_EPOCH:
            self.epoch = self._records.epoch
        if is_all:
            self._records = None  # frees the fetched bytes, which are many
        return records, is_all


class Leader:
    """The partitions that one broker leads for this reader, and the fetches from it."""

    def __init__(self, node: int) -> None:
        self.node = node
        #: Monotonic time of its last answer.
        self.answered = -inf
        self.begin()

    def begin(self) -> None:
        """Start over with no partitions and a new session."""
        self.places: dict[TP, Place] = {}
        self.session = FetchSession()
        #: Whether the broker is too old for topic ids.
        self.by_name = False
        #: Bytes of records in the last answer.
        self.brought = 0
        self.fetching: asyncio.Task[None] | None = None

    def lead(self, places: dict[TP, Place]) -> None:
        """Set the partitions that the broker leads. A new one resets `answered`: it was in no answer yet."""
        if not places.keys() <= self.places.keys():
            self.answered = -inf
        self.places = places

    def let_others_first(self, tp: TP) -> None:
        """Name this partition last in the next requests, because it just had records. A broker without a
        session fills its answer in the order of the request.
        """
        if tp in self.places:
            self.places[tp] = self.places.pop(tp)

    def rest(self) -> float:
        """Seconds to wait before the next fetch: 20 to 30 ms after a small answer, otherwise 0. The markers
        of a transaction come one partition after another; after a pause, one fetch brings them together.
        """
        if not 0 < self.brought < _LITTLE:
            return 0.0
        return min(max(monotonic() - self.answered, _REST), _LONGEST_REST)
