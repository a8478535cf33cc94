"""A standby follows a lane's changelogs, so that its worker can take it over without a long recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

import structlog

from streams.engine.life.positions.identity import copy_of
from streams.engine.life.recovery import (
    FETCH_RECORDS,
    changelog_partitions,
    let_go,
    open_store,
    restore,
    start_positions,
)
from streams.engine.life.stopping import unless
from streams.engine.staging.changes import Writes
from streams.engine.staging.inbox import bucket_length
from streams.errors import (
    ChangelogDamaged,
    LogCut,
    StoreFailed,
    StoreTooOld,
    TopicGone,
    TopicRecreated,
)
from streams.model.application import Application
from streams.model.policy.freshness import Freshness
from streams.ports import TP, Ports, Reader, Store

log = structlog.get_logger(__name__)

RETRY_DELAY = 1.0
#: Seconds between attempts while a standby waits for an operator to solve a problem.
STANDS = 30.0
#: Maximum seconds between checks whether the copy is current; less if deletions are kept for a short time.
PROVE_INTERVAL = 600.0
#: Seconds between reads of a standby that keeps up. A broker answers a reader at each append, so a standby
#: that asks again at once would cost the brokers more than the lanes do. A standby that is further behind
#: than one read brings does not pause.
PACE = 0.25
#: Seconds without an answer of a broker after which the standby does not know its lag. Brokers hold an answer
#: back for less.
HEARD = 2.0


class Standby:
    """Copies one lane's changelogs into its local store until stopped."""

    def __init__(
        self,
        app: Application,
        number: int,
        ports: Ports,
        *,
        yields: Callable[[], bool] = lambda: False,
    ) -> None:
        """While `yields` returns True, the standby pauses after each read, however far behind it is."""
        self.number = number
        self.records = 0
        #: Number of offsets to copy at the start, and the start by the monotonic clock; both 0 once the copy
        #: has caught up.
        self.to_copy = (0, 0.0)
        #: The copy while the standby follows, readable if the owner does not answer; None otherwise.
        self.store: Store | None = None
        #: When the copy last had everything that brokers reported, in epoch seconds; 0 for never.
        self.fresh_at = 0.0
        #: The store problem that the standby waits out, as text for people; empty if there is none.
        self.trouble = ""
        self._reader: Reader | None = None
        self._app = app
        self._ports = ports
        self._cluster, self._clock = ports.cluster, ports.clock
        self._yields = yields
        self._writes = Writes(bucket_length(app.lane_options.inbox_retention), app.followed)
        self._stopping = asyncio.Event()

    @property
    def behind(self) -> int | None:
        """The standby's lag in offsets, from the brokers' last answers; None while it is not reading."""
        return None if self._reader is None else self._reader.behind()

    def stop(self) -> None:
        """Ask the standby to end. `run` returns once the store is closed."""
        self._stopping.set()

    async def run(self) -> None:
        """Follow the changelogs until stopped. After an error, continue from the store's positions."""
        waited = 0
        while not self._stopping.is_set():
            try:
                await unless(self._stopping, self._follow())
            except StoreFailed as error:
                let_go(self._ports.stores, None, error, self.number)  # the store is already closed
                waited = waited + 1 if self.trouble else 0
                self.trouble = str(error)
                pause = min(RETRY_DELAY * 2 ** min(waited, 10), STANDS)
                log.warning("standby_waits", lane=self.number, cause=self.trouble, pause=pause)
                await unless(self._stopping, self._clock.sleep(pause))
            except StoreTooOld as error:
                log.warning("standby_too_old", lane=self.number, error=str(error))
            except (TopicRecreated, TopicGone, ChangelogDamaged, LogCut) as error:
                log.error("standby_stands", lane=self.number, error=str(error))  # noqa: TRY400 - it says all
                await unless(self._stopping, self._clock.sleep(STANDS))
            except Exception:
                log.exception("standby_restarts", lane=self.number)
                await unless(self._stopping, self._clock.sleep(RETRY_DELAY))

    async def _follow(self) -> None:
        tables = changelog_partitions(self._app, self.number)
        store = open_store(self._ports.stores, self.number, followed=bool(self._app.followed))
        try:
            reader = await self._cluster.reader()
            try:
                copying = await start_positions(self._app, store, tables, self._ports)
                positions, ends, freshness, accepted = copying
                await reader.assign(positions, copy_of(store).topics)
                self.to_copy = (sum(max(0, ends[tp] - positions[tp]) for tp in tables), monotonic())
                self._reader, self.store = reader, store
                self.fresh_at = 0.0  # it may have been wiped meanwhile
                self.trouble = ""
                while True:
                    batches = await reader.fetch(max_records=FETCH_RECORDS, timeout=0.5)
                    freshness.check(self._clock.now())
                    self.records += restore(store, self._writes, tables, batches, reader.epoch, accepted)
                    # Without recent answers of the brokers, a lag of 0 means nothing.
                    if (silence := reader.silence()) < HEARD and reader.behind() == 0:
                        self.fresh_at = max(self.fresh_at, self._clock.now() - silence)
                    brought = sum(len(batch.records) for batch in batches)
                    if self._yields() or not 0 < brought < reader.behind():
                        await self._clock.sleep(PACE)
                    await self._prove(freshness, reader, store, tables)
            finally:
                self._reader = self.store = None
                await reader.close()
        finally:
            store.close()

    async def _prove(
        self, freshness: Freshness, reader: Reader, store: Store, tables: Mapping[TP, str]
    ) -> None:
        """Record when the copy was last known to be current, and request new end offsets from time to time.
        A copy that reaches these ends was current when they were requested, not when it reaches them.
        """
        if freshness.has_reached(reader.position):
            self.to_copy = (0, 0.0)
            store.apply((), {}, current_at=freshness.current_at)
        now = self._clock.now()
        interval = min(PROVE_INTERVAL, freshness.interval)
        if not freshness.is_awaited and now - freshness.current_at > interval:
            freshness.expect(now, await self._cluster.end_offsets(tables))
