"""Watching lanes commit, from outside: each commit leaves records in the lane's own changelog."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

import structlog
from aiokafka.errors import KafkaError

from chaos.rig.records import CommitTimes
from streams.errors import PositionLost, SteadfaustError
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.model.layout import LANE, Layout
from streams.ports import TP, Batch, Reader

log = structlog.get_logger(__name__)

#: Commits of a lane that come closer together than this are noted as one, in seconds.
RESOLUTION = 0.05
_PAUSE = 0.2
_FETCH_RECORDS = 5000
_OPTIONS = KafkaOptions(fetch_wait=0.2)


class CommitWatch:
    """Notes when each lane's commits arrive at a reader of committed records, from when `run` first connects.

    `commits` may be called at any time, also when `run` was cancelled.
    """

    def __init__(self, bootstrap: str, app_id: str, partitions: int, lanes: int) -> None:
        self._bootstrap = bootstrap
        self._layout = Layout(app_id, partitions, lanes)
        self._tps = [TP(self._layout.changelog(LANE), number) for number in range(partitions)]
        self._positions: dict[TP, int] = {}
        self._seen: dict[int, list[float]] = {lane: [] for lane in range(lanes)}

    async def run(self) -> NoReturn:
        """Watch until cancelled. Whatever befalls brokers and connections, it connects again and goes on."""
        while True:
            try:
                await self._watch()
            except PositionLost as error:
                log.warning("commit_watch_skips", error=str(error))
                self._positions.clear()  # only arrivals are of interest: go on from the end
            except (SteadfaustError, KafkaError, OSError, TimeoutError) as error:
                log.warning("commit_watch_reconnects", error=repr(error))
            await asyncio.sleep(_PAUSE)

    def commits(self) -> CommitTimes:
        """What was seen so far."""
        return CommitTimes(seen={lane: list(times) for lane, times in self._seen.items()})

    def note(self, batches: list[Batch], now: float) -> None:
        """These arrived at `now`, in seconds since the epoch; one without records was no commit."""
        for batch in batches:
            self._positions[batch.tp] = batch.next_offset
            times = self._seen[self._layout.lane_of(batch.tp.partition)]
            if batch.records and (not times or now - times[-1] >= RESOLUTION):
                times.append(round(now, 3))

    async def _watch(self) -> NoReturn:
        cluster = KafkaCluster(self._bootstrap, _OPTIONS)
        try:
            if not self._positions:
                self._positions = await cluster.end_offsets(self._tps)
            reader = await cluster.reader()
            try:
                await self._follow(reader)
            finally:
                await reader.close()
        finally:
            await cluster.close()

    async def _follow(self, reader: Reader) -> NoReturn:
        await reader.assign(self._positions)
        while True:
            self.note(await reader.fetch(max_records=_FETCH_RECORDS, timeout=1.0), time.time())
