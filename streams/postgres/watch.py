"""Looks at outbox, replication slot and queues of a database now and then: for Prometheus and `/health`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import asyncpg
import structlog
from prometheus_client import CollectorRegistry, Gauge

from streams.errors import text_of
from streams.postgres.advice import advice
from streams.postgres.database import Database
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.migrations import newer_database
from streams.postgres.outbox.operations import OutboxStatus, status
from streams.postgres.outbox_owner import RelayKind, cdc_beginnings, outbox_owner, why_nobody_relays
from streams.postgres.queue.metrics import QueueGauges
from streams.postgres.queue.operations import QueueStatus, queue_standings
from streams.postgres.replication_slot import WARN_AT_BYTES, SlotLag, slot_lag

log = structlog.get_logger(__name__)

#: What waits longer is worth a reason, in seconds: a row of the outbox, and a job that may be taken.
OLDEST = 300.0
#: Between two looks, in seconds.
EVERY = 5.0
#: A look that is older tells nothing, in seconds.
_STALE = 30.0


class DatabaseWatch:
    """How the outbox, its replication slot and the queues of a database stand.

    Arguments:
        database: open, or opened before the first look.
        registry: gets the gauges; it takes them once.
        slot_warn_at: bytes of the log that the slot of change data capture may keep before it warns.
        relays: this program is a relay by change data capture, and needs no advice to start one.
    """

    def __init__(
        self,
        database: Database,
        registry: CollectorRegistry,
        *,
        slot_warn_at: int = WARN_AT_BYTES,
        relays: bool = False,
    ) -> None:
        self._database = database
        self._slot_warn_at = slot_warn_at
        self._relays = relays
        self._slot_gauges = SlotGauges(registry)
        self._slot: SlotLag | None = None
        self._outbox_gauges = OutboxGauges(registry)
        self._queue_gauges = QueueGauges(registry)
        self._outbox: OutboxStatus | None = None
        self._queues: Sequence[QueueStatus] = ()
        self._looked = time.monotonic()
        self._failure = ""
        self._newer = ""
        self._unrelayed = ""

    async def run(self) -> None:
        """Look every few seconds, until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Look once. What keeps it from that is logged, and `outbox` tells it after a while."""
        try:
            async with self._database.acquire() as connection:
                found, queues = await status(connection), await queue_standings(connection)
                slot = await slot_lag(connection, self._slot_warn_at)
                beginnings = await cdc_beginnings(connection)
                newer = await newer_database(connection)
                unrelayed = ""
                if found.unpublished and await outbox_owner(connection) is RelayKind.CDC:
                    unrelayed = await why_nobody_relays(connection, slot)
        except (DatabaseUnavailable, asyncpg.PostgresError) as error:  # such as tables that are not there yet
            why = text_of(error) + (advice(error) if isinstance(error, asyncpg.PostgresError) else "")
            if why != self._failure:
                log.warning("database_not_looked_at", error=why, action="tries again")
            self._failure = why
            return
        self._outbox, self._queues, self._slot, self._failure = found, queues, slot, ""
        if newer and newer != self._newer:
            log.warning("database_is_newer", error=newer)
        self._newer, self._unrelayed = newer, unrelayed
        self._looked = time.monotonic()
        self._outbox_gauges.sampled(found)
        self._queue_gauges.sampled(queues)
        self._slot_gauges.sampled(slot, beginnings)

    async def outbox(self) -> str:
        """Why the outbox is not well; empty: it is."""
        if time.monotonic() - self._looked > _STALE:
            why = f": {self._failure}" if self._failure else ""
            return f"it is not known how many rows wait{why}"
        found = self._outbox
        if found is None or found.oldest_seconds <= OLDEST:
            return ""
        return (
            f"the oldest of {found.unpublished} rows has waited for {found.oldest_seconds:.0f} s;"
            f" brokers have refused {found.failed}: see `steadfaust outbox list --state failed`"
        )

    async def queues(self) -> str:
        """Why queues are not well; empty: they are. A failed look is reported with the outbox."""
        return "; ".join(why for each in self._queues if (why := trouble_of(each)))

    async def migrations(self) -> str:
        """A warning that the database is ahead of this program; empty: it is not."""
        return self._newer

    async def slot(self) -> str:
        """Why the replication slot may fill the disk; empty: it does not, also where polling relays work."""
        if not self._relays:
            return self._slot.warning if self._slot else self._unrelayed
        if self._slot:
            return self._slot.trouble
        return (
            self._unrelayed and "there is no replication slot yet: this relay begins with the rows that wait"
        )


def trouble_of(queue: QueueStatus) -> str:
    """The trouble of a queue; empty: none."""
    reasons = []
    if failed := queue.jobs["failed"]:
        reasons.append(
            f"{failed} jobs of {queue.queue} have failed: see `steadfaust queue list {queue.queue}`"
        )
    if queue.oldest_ready > OLDEST:
        reasons.append(f"a job of {queue.queue} has waited for a worker for {queue.oldest_ready:.0f} s")
    return "; ".join(reasons)


class OutboxGauges:
    """Gauges of the table, which a registry takes once; every process that looks tells them alike.

    `outbox_unpublished_rows`, `outbox_oldest_unpublished_seconds`, `outbox_failed_rows` and
    `outbox_table_bytes`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._unpublished = Gauge("outbox_unpublished_rows", "Rows that wait: the lag.", registry=registry)
        self._oldest = Gauge(
            "outbox_oldest_unpublished_seconds", "Age of the oldest row that waits.", registry=registry
        )
        self._failed = Gauge("outbox_failed_rows", "Rows that a broker has refused.", registry=registry)
        self._bytes = Gauge("outbox_table_bytes", "The table and its indexes on the disk.", registry=registry)

    def sampled(self, status: OutboxStatus) -> None:
        """State of the table."""
        self._unpublished.set(status.unpublished)
        self._oldest.set(status.oldest_seconds)
        self._failed.set(status.failed)
        self._bytes.set(status.table_bytes)


class SlotGauges:
    """Gauges of the slot, which a registry takes once; every process that looks tells them alike.

    `outbox_slot_active`, `_lost`, `_behind_bytes`, `_retained_bytes`, `_warn_bytes`, all 0 without one, and
    `outbox_slot_beginnings`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._active = Gauge("outbox_slot_active", "1: a connector reads the slot.", registry=registry)
        self._lost = Gauge(
            "outbox_slot_lost", "1: the server has dropped log that was not read.", registry=registry
        )
        self._behind = Gauge(
            "outbox_slot_behind_bytes", "Log that the connector has not confirmed.", registry=registry
        )
        self._retained = Gauge(
            "outbox_slot_retained_bytes", "Log that the server keeps for the slot.", registry=registry
        )
        self._warn_at = Gauge(
            "outbox_slot_warn_bytes", "Log kept from which on the slot warns.", registry=registry
        )
        self._beginnings = Gauge(
            "outbox_slot_beginnings",
            "How often change data capture has begun with the table, at a new slot.",
            registry=registry,
        )

    def sampled(self, slot: SlotLag | None, beginnings: int) -> None:
        """The slot's state, None if there is none; and how often it was made anew."""
        self._beginnings.set(beginnings)
        self._active.set(slot is not None and slot.active)
        self._lost.set(slot is not None and slot.is_lost)
        self._behind.set(slot.behind if slot else 0)
        self._retained.set(slot.retained if slot else 0)
        self._warn_at.set(slot.warns_from if slot else 0)
