"""What a fetcher reads: partitions, and the brokers that lead them."""

from __future__ import annotations

import asyncio
from itertools import islice
from math import inf
from time import monotonic
from typing import Any

from streams.kafka.fetch_sessions import FetchSession
from streams.kafka.partition_records import FetchedRecords, IsolatingRecords, Isolation
from streams.ports import NO_EPOCH, TP, Record

#: Bytes of an answer that brings little, and how long a reader rests after one, in seconds.
_LITTLE = 64 << 10
_REST, _LONGEST_REST = 0.02, 0.03
_READ_COMMITTED = 1


class Place:
    """How far a partition is read.

    Attributes:
        position: the offset that the next record is taken from.
        epoch: the leader epoch of what was read before it; NO_EPOCH: unknown.
        end, stable: where its log and what is decided of it end, by the last answer; None: none came yet.
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
        """Have these records read from its position on, but for those of `aborted` transactions."""
        self._records = IsolatingRecords(
            self.tp, records, aborted, self.position, None, None, isolation, _READ_COMMITTED
        )

    def take(self, most: int) -> tuple[list[Record], bool]:
        """The next records, and whether these were all that can be read of what came. The position moves with
        them, and over what a reader does not get to see. Raises what none can be read of.
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
            self._records = None  # what it was read from is large
        return records, is_all


class Leader:
    """What one broker leads of what is read, and the fetches from it."""

    def __init__(self, node: int) -> None:
        self.node = node
        #: When it has answered last, by the monotonic clock.
        self.answered = -inf
        self.begin()

    def begin(self) -> None:
        """From here on other partitions are read."""
        self.places: dict[TP, Place] = {}
        self.session = FetchSession()
        #: Whether it is too old for the ids of topics.
        self.by_name = False
        #: How many bytes of records have come with the last answer.
        self.brought = 0
        self.fetching: asyncio.Task[None] | None = None

    def lead(self, places: dict[TP, Place]) -> None:
        """From now on it leads these. What it has answered before says nothing of one that is new to it."""
        if not places.keys() <= self.places.keys():
            self.answered = -inf
        self.places = places

    def let_others_first(self, tp: TP) -> None:
        """What has brought something is named last from now on: a broker that keeps no session fills its
        answer from what is named first.
        """
        if tp in self.places:
            self.places[tp] = self.places.pop(tp)

    def rest(self) -> float:
        """Seconds until the next fetch after an answer that brought little: as long as the reader was busy
        with that, within bounds. A transaction ends in one partition after the other; the others come
        together then.
        """
        if not 0 < self.brought < _LITTLE:
            return 0.0
        return min(max(monotonic() - self.answered, _REST), _LONGEST_REST)
