"""The relay by change data capture as a worker's service runs it: it announces schemas, too."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from streams.errors import ClusterUnavailable, TransientError
from streams.postgres import Database
from streams.postgres.cdc import CdcRelay, Connect
from streams.postgres.cdc.relay import STEP
from streams.postgres.errors import DatabaseUnavailable, StatementRefused
from streams.postgres.relay import After, RelayCounts
from streams.postgres.replication_slot import WARN_AT_BYTES
from streams.runtime.outbox_publisher import KafkaPublisher


class CdcRelaying:
    """Has the connector relay, and announces the schemas that its messages are written with.

    A message may be read before its schema is announced, by the time of a look: readers wait for it
    (`schema_patience`).

    Arguments:
        after: what becomes of a row that was relayed.
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
            self._counts.refused_by_database(str(error))
            self._relay.tell(str(error))
            return
        except (TransientError, ClusterUnavailable) as error:
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
