"""Cuts: the lane counts that an application was ever run with (docs/adr/0014-cuts.md).

Fencing uses transactional ids, and an id contains its lane count. So the owner of a lane under a new count
also fences the owners of its partitions under all other counts. A worker that wakes up under an old count
opens no lane again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import structlog

from streams.errors import ClusterUnavailable, Fenced, LayoutMismatch
from streams.model.layout import LANE, Layout
from streams.ports import TP, Batch, Cluster, Outgoing, Reader, Transactions

log = structlog.get_logger(__name__)

_KEY = b"cut:"
#: The key of the record that says why no lane may open: the application was resharded, or is not complete.
CLOSED = b"closed"
#: Attempts to fence an id. Lanes that fence the same id at the same time may fence each other.
_TRIES = 5
#: Fetches of 0.2 s without a record until the announcements count as unreadable. Only a worker that died
#: while it recorded a lane count blocks reading for so long, until the next lane or the broker's timeout ends
#: its transaction.
_WAITS = 150


async def recorded_cut(layout: Layout, cluster: Cluster) -> Layout:
    """The layout with the partitions and lane count that the application has in the cluster; `layout` itself
    before its first start. Raises ClusterUnavailable.
    """
    topics = changelog, _ = layout.changelog(LANE), layout.announcements
    there = (await cluster.identity(topics)).partitions
    if not all(topic in there for topic in topics):
        return layout
    found = replace(layout, partitions=there[changelog], lanes=min(layout.lanes, there[changelog]))
    cuts = Cuts(found, cluster)
    await cuts.look()
    return replace(found, lanes=cuts.newest or found.lanes)


class Cuts:
    """The lane counts recorded on the announcements topic, as far as one worker knows. Its lanes share this.

    A worker records its own lane count once, when its first lane opens. If another worker records a different
    one later, lanes of this worker no longer open: a worker that was frozen must not take the application
    back to an earlier count.
    """

    def __init__(self, layout: Layout, cluster: Cluster) -> None:
        self._layout = layout
        self._cluster = cluster
        self._tp = TP(layout.announcements, 0)
        self._keys = {_key(lanes): lanes for lanes in range(1, layout.partitions + 1)}
        self._position: int | None = None
        self._offsets: dict[int, int] = {}  # offset of the newest record of each lane count
        self._found: int | None = None  # offset of the newest record when this worker started
        #: Why no lane may open; empty if lanes may open.
        self.closed = ""
        self._recording = asyncio.Lock()
        self._fenced: set[str] = set()  # ids fenced since the newest record
        self._fenced_at = -1

    async def look(self) -> None:
        """Read the newest lane count before joining the group. If a newer one has been recorded by the time
        the worker gets lanes, it does not record its own over it. Raises ClusterUnavailable.
        """
        reader = await self._cluster.reader()
        try:
            await self._read(reader)
        finally:
            await reader.close()

    @property
    def newest(self) -> int | None:
        """The lane count recorded last, as far as this worker has read; None if there is none."""
        return max(self._offsets, key=self._offsets.__getitem__, default=None)

    async def enter(
        self, lane: int, producer: Transactions, reader: Reader, *, may_record: bool = True
    ) -> None:
        """Fence all owners of this lane's partitions under other lane counts. Afterwards none can commit.

        `producer` is the lane's producer, already started. An owner under a newer lane count has either
        fenced it, or recorded that count before it started, so that it is read here. The order is therefore:
        start, read, fence. Programs that are no worker pass `may_record=False`.
        Raises LayoutMismatch if the newest lane count is not this worker's or no lane may open. Raises
        Fenced, TransactionFailed or ClusterUnavailable if it has to be tried again.
        """
        await self._read(reader)
        self._require_open()
        if may_record and self.newest != self._layout.lanes:
            async with self._recording:
                if self.newest != self._layout.lanes and self._newest_offset() == self._found:
                    await self._record(producer)
                    await self._read(reader)
        self._require_open()
        newest = self.newest
        if newest is None:
            raise LayoutMismatch(
                f"no worker has recorded the lane count of {self._layout.app_id} yet: start the workers"
                " first; once one has run, the lane count is recorded."
            )
        if newest != self._layout.lanes:
            raise LayoutMismatch(
                f"{self._layout.app_id} has been run with {newest} lanes since this worker started, but this"
                f" one is set to {self._layout.lanes}: set STEADFAUST_LANES={newest}, or stop all workers"
                " first."
                ' See docs/operating.md, "Changing the lane count".'
            )
        await self._fence(self._ids_of_others(lane))

    def _require_open(self) -> None:
        if self.closed:
            raise LayoutMismatch(self.closed)

    async def fence_all(self) -> None:
        """Fence the owners of all lanes under every recorded lane count. Raises Fenced, TransactionFailed or
        ClusterUnavailable.
        """
        cuts = [replace(self._layout, lanes=lanes) for lanes in self._offsets]
        ids = [cut.transactional_id(lane) for cut in cuts for lane in range(cut.lanes)]
        await asyncio.gather(*map(self._end_owner, ids))

    def _newest_offset(self) -> int:
        return max(self._offsets.values(), default=-1)

    def _ids_of_others(self, lane: int) -> set[str]:
        partitions = self._layout.partitions_of(lane)
        others = [replace(self._layout, lanes=n) for n in self._offsets if n != self._layout.lanes]
        return {other.transactional_id(other.lane_of(p)) for other in others for p in partitions}

    # -- the record -----------------------------------------------------------------------------------

    async def _read(self, reader: Reader) -> None:
        """Read up to the current high watermark, and so everything recorded before."""
        if self._position is None:
            self._position = (await self._cluster.begin_offsets([self._tp]))[self._tp]
        end = (await self._cluster.end_offsets([self._tp]))[self._tp]
        if self._position < end:
            self._position = max(self._position, await self._read_to(end, reader))
        if self._found is None:
            self._found = self._newest_offset()

    async def _read_to(self, end: int, reader: Reader) -> int:
        assert self._position is not None
        await reader.assign({self._tp: self._position})
        waits = 0
        while (position := reader.position(self._tp)) < end:
            batches = await reader.fetch(max_records=1000, timeout=0.2)
            self._learn(batches)
            waits = 0 if batches else waits + 1
            if waits == _WAITS:
                raise ClusterUnavailable(
                    f"{self._tp.topic} cannot be read beyond {position}, its end is {end}"
                )
        return position

    def _learn(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            for record in batch.records:
                key = record.key or b""
                lanes = self._keys.get(key)
                if key == CLOSED:
                    self.closed = (record.value or b"").decode(errors="replace")
                elif lanes is not None:
                    self._offsets[lanes] = max(record.offset, self._offsets.get(lanes, -1))
                elif key.startswith(_KEY):
                    log.warning("cut_unreadable", offset=record.offset, key=repr(key[:40]))

    async def _record(self, producer: Transactions) -> None:
        """Record this worker's lane count in a transaction of the lane that opens, before any lane works
        under it.
        """
        lanes = self._layout.lanes
        log.info("cut_recorded", lanes=lanes, before=self.newest)
        await producer.begin()
        await producer.send({self._tp: [Outgoing(_key(lanes), str(lanes).encode(), [])]})
        await producer.commit()

    # -- fencing --------------------------------------------------------------------------------------

    async def _fence(self, ids: set[str]) -> None:
        """Fence ids, each once after the newest record of a lane count. Since that record no lane can have
        opened under another count.
        """
        newest = self._newest_offset()
        if newest != self._fenced_at:
            self._fenced, self._fenced_at = set(), newest
        todo = sorted(ids - self._fenced)
        results = await asyncio.gather(*(self._end_owner(each) for each in todo), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result
        if newest == self._fenced_at:
            self._fenced.update(todo)

    async def _end_owner(self, transactional_id: str) -> None:
        for tried in range(1, _TRIES + 1):
            producer = self._cluster.transactions(transactional_id)
            try:
                await producer.start()
            except Fenced:  # another lane fences the same id, so try again
                if tried == _TRIES:
                    raise
            else:
                return
            finally:
                await producer.discard()


def _key(lanes: int) -> bytes:
    return _KEY + str(lanes).encode()
