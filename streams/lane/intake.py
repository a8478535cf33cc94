"""What a lane has read and not yet taken: batches held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from streams.lane.backlog import BacklogLimit
from streams.lane.dispatch import Pipeline
from streams.ports import TP, Batch, Reader

#: Records taken from the reader at once: large enough to be fast, small enough to let other lanes run.
FETCH_RECORDS = 500
FETCH_TIMEOUT = 0.5
#: How long the lane may be at it until others have their turn, in seconds, as far as it can tell beforehand.
TURN = 0.1
#: Records that the pipeline is offered at once before it is known how long they take.
FIRST_OFFER = 16


class Intake:
    """Feeds the pipeline from the reader, each partition in order, within the lane's bounds."""

    def __init__(
        self,
        pipeline: Pipeline,
        reader: Reader,
        limit: BacklogLimit,
        taken: Callable[[], None],
    ) -> None:
        """`limit` counts this lane already; `taken` is called when there may be something to commit."""
        self._taken = taken
        self._pipeline = pipeline
        self._reader = reader
        self._limit = limit
        self._held: dict[TP, deque[Batch]] = {}
        #: Records that the pipeline is offered at once: fewer where each takes long.
        self._at_once = FIRST_OFFER

    async def step(self) -> bool:
        """Offer what is held, then read more; False when the lane is full and has to make room first."""
        if not self._offer():
            return True
        room = self._room()
        if not room:
            return False
        batches = await self._reader.fetch(max_records=min(FETCH_RECORDS, room), timeout=FETCH_TIMEOUT)
        for batch in batches:
            self._held.setdefault(batch.tp, deque()).append(batch)
        self._offer()
        return True

    def _room(self) -> int:
        if self._pipeline.room_in_flight <= 0:
            return 0
        return self._limit.room(self._pipeline.sequences, self._waiting())

    def _waiting(self) -> int:
        return sum(len(batch.records) for batches in self._held.values() for batch in batches)

    def _offer(self) -> bool:
        """Offer batches to the pipeline; what it cannot take stays. False when others should have their turn
        before the rest is offered.
        """
        until = perf_counter() + TURN
        for tp in list(self._held):
            batches = self._held.pop(tp)
            while batches and perf_counter() < until and self._accept(batches):
                pass
            if batches:
                self._held[tp] = batches  # behind the others
        if self._pipeline.sequences.backlog or self._pipeline.sequences.has_passed:
            self._taken()
        return perf_counter() < until

    def _accept(self, batches: deque[Batch]) -> bool:
        """Offer the first of these batches, or the beginning of it where records take long; False when not
        all of it was taken.
        """
        batch = batches.popleft()
        if len(batch.records) > self._at_once:
            part = batch.records[: self._at_once]
            batches.appendleft(Batch(batch.tp, batch.records[self._at_once :], batch.next_offset))
            batch = Batch(batch.tp, part, part[-1].offset + 1)
        began = perf_counter()
        rest = self._pipeline.accept(batch)
        seconds = perf_counter() - began
        if seconds > TURN:
            self._at_once = max(1, self._at_once // 4)
        elif seconds < TURN / 4:
            self._at_once = max(FIRST_OFFER, min(FETCH_RECORDS, self._at_once * 2, len(batch.records) * 2))
        if rest is not None:
            batches.appendleft(rest)
        return rest is None
