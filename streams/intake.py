"""What a lane has read and not yet taken: batches held back, and partitions that wait for a schema."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from streams.application import Delivery
from streams.backlog import BacklogLimit
from streams.pipeline import Pipeline
from streams.ports import TP, Batch, Reader

#: Records taken from the reader at once: large enough to be fast, small enough to let other lanes run.
FETCH_RECORDS = 500
FETCH_TIMEOUT = 0.5


class Intake:
    """Feeds the pipeline from the reader, each partition in order, within the lane's bounds."""

    def __init__(
        self,
        sources: Sequence[TP],
        pipeline: Pipeline,
        reader: Reader,
        delivery: Delivery,
        limit: BacklogLimit,
        taken: Callable[[], None],
    ) -> None:
        """`limit` counts this lane already; `taken` is called when there may be something to commit."""
        self._taken = taken
        self._sources = sources
        self._pipeline = pipeline
        self._reader = reader
        self._delivery = delivery
        self._limit = limit
        self._held: dict[TP, deque[Batch]] = {}
        self._parked: dict[TP, int] = {}

    async def step(self) -> bool:
        """Offer what is held, then read more; False when the lane is full and has to make room first."""
        self._offer()
        await self._park()
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

    def _offer(self) -> None:
        """Offer batches to the pipeline; what it cannot take stays."""
        for tp in list(self._held):
            batches = self._held[tp]
            while batches:
                rest = self._pipeline.accept(batches.popleft())
                if rest is not None:
                    batches.appendleft(rest)
                    break
            else:
                del self._held[tp]
        if self._pipeline.sequences.backlog or self._pipeline.sequences.has_passed:
            self._taken()

    async def _park(self) -> None:
        """A partition that waits for a schema must not fill the lane up: of what was read only the first
        record is kept, and the rest is read again once that one was taken.
        """
        held, parked = self._held, self._parked
        back = [tp for tp in parked if tp not in held]
        full = self._waiting() >= self._delivery.max_backlog // 2
        blocked = [tp for tp in held if tp in self._pipeline.waiting and tp not in parked] if full else []
        if not back and not blocked:
            return
        positions = {tp: self._reader.position(tp) for tp in self._sources if tp not in parked}
        positions |= {tp: parked.pop(tp) for tp in back}
        for tp in blocked:
            first = held[tp][0].records[0]
            held[tp] = deque([Batch(tp, [first], first.offset + 1)])
            parked[tp] = first.offset + 1
            del positions[tp]
        await self._reader.assign(positions)
