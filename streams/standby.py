"""A standby follows a lane's changelogs, so that its worker can take it over without a long recovery."""

from __future__ import annotations

import asyncio

import structlog

from streams.application import Application
from streams.changes import Writes
from streams.inbox import bucket_length
from streams.ports import Clock, Cluster, Stores
from streams.recovery import FETCH_RECORDS, changelog_partitions, open_store, restore, start_positions, touch
from streams.stopping import unless

log = structlog.get_logger(__name__)

RETRY_DELAY = 1.0
TOUCH_INTERVAL = 600.0
#: Seconds between reads of a standby that keeps up. A broker answers a reader at each append, and one that
#: asks again at once costs the brokers more than the lanes do; so far behind, it is caught up in no time.
PACE = 0.25


class Standby:
    """Copies one lane's changelogs into its local store until stopped."""

    def __init__(
        self, app: Application, number: int, *, cluster: Cluster, stores: Stores, clock: Clock
    ) -> None:
        self.number = number
        self.records = 0
        self._app = app
        self._cluster = cluster
        self._stores = stores
        self._clock = clock
        self._writes = Writes(bucket_length(app.delivery.inbox_retention))
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ask it to end; `run` returns when the store is closed."""
        self._stopping.set()

    async def run(self) -> None:
        """Follow until stopped; after an error, begin again where the store stands."""
        while not self._stopping.is_set():
            try:
                await unless(self._stopping, self._follow())
            except Exception:
                log.exception("standby_restarts", lane=self.number)
                await unless(self._stopping, self._clock.sleep(RETRY_DELAY))

    async def _follow(self) -> None:
        tables = changelog_partitions(self._app, self.number)
        store = open_store(self._stores, self.number)
        try:
            reader = await self._cluster.reader()
            try:
                positions, _ = await start_positions(
                    store,
                    self._cluster,
                    tables,
                    delete_retention=self._app.delivery.delete_retention,
                    now=self._clock.now(),
                )
                await reader.assign(positions)
                touched = self._clock.now()
                while True:
                    batches = await reader.fetch(max_records=FETCH_RECORDS, timeout=0.5)
                    self.records += restore(store, self._writes, tables, batches)
                    if sum(len(batch.records) for batch in batches) < FETCH_RECORDS:
                        await self._clock.sleep(PACE)
                    if not batches and self._clock.now() - touched > TOUCH_INTERVAL:
                        touched = self._clock.now()
                        await touch(store, self._cluster, tables)
            finally:
                await reader.close()
        finally:
            store.close()
