"""A lane asks the cluster now and then whether topics and store are what they were."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from streams.errors import ClusterUnavailable
from streams.lane.housekeeping import HOUSEKEEPING
from streams.lane.recovery import changelog_partitions, touch
from streams.model.application import Application
from streams.ports import Clock, Cluster, Store
from streams.positions.checks import check_topics

log = structlog.get_logger(__name__)

#: Between looks whether something is to be asked of the cluster, and after an answer that did not come.
ASK_INTERVAL = 5.0


class ClusterWatch:
    """Asks for one lane, beside all else: an answer may take long, and the lane goes on without one."""

    def __init__(
        self,
        app: Application,
        lane: int,
        topics: Collection[str],
        *,
        store: Store,
        cluster: Cluster,
        clock: Clock,
    ) -> None:
        self._app = app
        self._lane = lane
        self._topics = topics
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._touched = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        """Ask until the lane stops. Raises TopicRecreated, PositionsDisagree or PositionLost."""
        checked = self._clock.now()
        while not stopping.is_set():
            await self._clock.sleep(ASK_INTERVAL)
            try:
                if self._clock.now() - checked > HOUSEKEEPING:
                    await check_topics(self._app, self._lane, self._topics, self._store, self._cluster)
                    checked = self._clock.now()
                await self._touch()
            except ClusterUnavailable as error:
                log.warning("lane_cannot_ask", lane=self._lane, error=str(error), action="asked again")

    async def _touch(self) -> None:
        """An idle lane's store is current, too: say so, lest it be rebuilt when it is opened again."""
        interval = min(HOUSEKEEPING, self._app.lane_options.delete_retention / 8)
        now = self._clock.now()
        if now - max(self._store.current_at() or 0.0, self._touched) > interval:
            tables = changelog_partitions(self._app, self._lane)
            await touch(self._store, self._cluster, tables, self._clock)
            self._touched = now
