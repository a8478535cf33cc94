"""The relay as a service of mode, with its metrics, health and cleanup."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from mode import Service
from prometheus_client import CollectorRegistry, ProcessCollector

from streams.control.metrics.throttled import ThrottledSeconds
from streams.errors import ClusterUnavailable, TransientError
from streams.http import Check, Health, HttpServer, operations_app
from streams.kafka.clients import KafkaOptions
from streams.kafka.throttles import throttles
from streams.ports import Faults
from streams.postgres import Database
from streams.postgres.cdc import CdcRelay, Connect
from streams.postgres.cdc.relay import STEP
from streams.postgres.cleanup import DatabaseCleanup, Retention
from streams.postgres.errors import DatabaseUnavailable, StatementRefused
from streams.postgres.relay import After, Relay, RelayCounts, RelayMetrics, RelayOptions
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from streams.postgres.replication_slot import WARN_AT_BYTES
from streams.postgres.watch import DatabaseWatch
from streams.settings import Settings


class RelayService(Service):
    """Relays the outbox of the settings' database to the settings' brokers, or has Connect do it.

    Arguments:
        settings: what to do; see docs/settings.md.
        port: for `/health` and `/metrics`; 0 for any free one, None for neither.
        host: the address to listen on.
        faults: for tests.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        faults: Faults | None = None,
    ) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(ThrottledSeconds(throttles.seconds))
        self.metrics = RelayMetrics(self.registry)
        self._database = Database(settings.postgres(), least=0, most=3, name="steadfaust relay desk")
        self._watch = DatabaseWatch(
            self._database,
            self.registry,
            slot_warn_at=settings.outbox_slot_warn_bytes,
            relays=settings.outbox == "cdc",
        )
        self.health = Health(
            [
                Check("postgres", self._postgres),
                Check("kafka", self._kafka),
                Check("quotas", throttles.check, "DEGRADED"),
                Check("statements", self._statements, "DEGRADED"),
                Check("outbox", self._watch.outbox, "DEGRADED"),
                Check("queues", self._watch.queues, "DEGRADED"),
                Check("migrations", self._watch.migrations, "DEGRADED"),
                Check("slot", self._watch.slot, "DEGRADED"),
            ]
        )
        self.server = (
            HttpServer(operations_app(self.health, self.registry), host=host, port=port)
            if port is not None
            else None
        )
        self._cleanup = DatabaseCleanup(self._database, Retention.of(settings))
        self._cleanup_every = settings.cleanup_every
        publisher = KafkaPublisher(
            settings.brokers(),
            settings.layout().announcements,
            KafkaOptions(max_batch=settings.max_message_bytes),
        )
        self._relay: Relay | CdcRelaying
        if settings.outbox == "cdc":
            self._relay = CdcRelaying(
                self._database,
                Connect(settings.connect()),
                publisher,
                counts=self.metrics,
                after=After(settings.outbox_after),
                slot_warn_at=settings.outbox_slot_warn_bytes,
            )
        else:
            self._relay = Relay(
                settings.postgres(),
                publisher,
                RelayOptions(after=After(settings.outbox_after), poll=settings.outbox_poll),
                counts=self.metrics,
                faults=faults,
            )
        self._opened = AsyncExitStack()
        self._relaying: asyncio.Task[None] | None = None
        #: Set when the relay has ended, whether it was stopped or failed.
        self.ended = asyncio.Event()
        self.failure: BaseException | None = None

    async def on_start(self) -> None:
        """Begin. PostgreSQL and Kafka may come later."""
        await self._opened.enter_async_context(self._database)
        if self.server is not None:
            await self._opened.enter_async_context(self.server)
        self._relaying = asyncio.create_task(self._relay.run())
        self._relaying.add_done_callback(self._relay_ended)
        self.add_future(self._watch.run())
        if self._cleanup_every:
            self.add_future(self._cleanup.run(self._cleanup_every))

    async def on_stop(self) -> None:
        """Mark what is under way, then let go."""
        self._relay.stop()
        if self._relaying is not None:
            await asyncio.wait([self._relaying])
        await self._opened.aclose()

    def _relay_ended(self, relaying: asyncio.Task[None]) -> None:
        self.failure = None if relaying.cancelled() else relaying.exception()
        self.ended.set()

    async def _postgres(self) -> str:
        return self.metrics.no_database

    async def _kafka(self) -> str:
        return self.metrics.no_kafka

    async def _statements(self) -> str:
        return self.metrics.waiting


class CdcRelaying:
    """Has the connector relay, and announces the schemas that its messages are written with.

    A message may be read before its schema is announced, by the time of a look: readers wait for it
    (`schema_patience`).

    Arguments:
        after: what to do with a row that was relayed.
        slot_warn_at: bytes of PostgreSQL's log that the slot may keep before this process warns.
    """

    def __init__(
        self,
        database: Database,
        connect: Connect,
        publisher: KafkaPublisher,
        *,
        counts: RelayCounts,
        after: After = After.MARK,
        slot_warn_at: int = WARN_AT_BYTES,
    ) -> None:
        self._connect = connect
        self._relay = CdcRelay(database, connect, after=after, slot_warn_at=slot_warn_at)
        self._publisher = publisher
        self._counts = counts
        self._announced: set[str] = set()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End soon. The connector goes on."""
        self._stopping.set()

    async def run(self) -> None:
        """Look after it until `stop`. Raises OutboxOwned when the outbox is the polling relays'."""
        try:
            async with self._connect:
                while not self._stopping.is_set():
                    await self._look()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(STEP):
                            await self._stopping.wait()
        finally:
            self._counts.stopped()
            await self._publisher.close()

    async def _look(self) -> None:
        try:
            try:
                status = await self._relay.step()
            except StatementRefused:
                await self._announce()  # the connector goes on with what it has
                raise
            problem, standstill = status.problem, status.standstill
            self._counts.database_up()
            if status.unmarked:
                self._counts.refused_by_database(status.unmarked)
            else:
                self._counts.database_does()
            self._counts.relayed(self._relay.marked())
            await self._announce()
        except DatabaseUnavailable as error:
            self._counts.database_down(str(error))
            return
        except StatementRefused as error:  # nothing is relayed the less
            self._counts.database_up()
            self._counts.refused_by_database(str(error))
            self._relay.tell(str(error))
            return
        except (TransientError, ClusterUnavailable) as error:  # PostgreSQL was asked before
            self._counts.database_up()
            problem = standstill = str(error)
        self._relay.tell(problem)
        if not standstill:  # a slot that warns is no outage
            self._counts.kafka_up()
        elif standstill != self._counts.no_kafka:
            self._counts.kafka_down(standstill)

    async def _announce(self) -> None:
        if new := await self._relay.schemas(self._announced):
            await self._publisher.announce(new)
            self._announced |= new.keys()
