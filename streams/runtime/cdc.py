"""The relay by change data capture as a worker's service runs it: it announces schemas, too."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from streams.errors import ClusterUnavailable, TransientError
from streams.postgres import Database
from streams.postgres.cdc import CdcRelay, Connect
from streams.postgres.cdc.relay import STEP
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.relay import RelayCounts
from streams.runtime.outbox_publisher import KafkaPublisher


class CdcRelaying:
    """Has the connector relay, and announces the schemas that its messages are written with.

    A message may be read before its schema is announced, by the time of a look: readers wait for it
    (`schema_patience`).
    """

    def __init__(
        self, database: Database, connect: Connect, publisher: KafkaPublisher, *, counts: RelayCounts
    ) -> None:
        self._connect = connect
        self._relay = CdcRelay(database, connect)
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
            problem = (await self._relay.step()).problem
            self._counts.database_up()
            if new := await self._relay.schemas(self._announced):
                await self._publisher.announce(new)
                self._announced |= new.keys()
        except DatabaseUnavailable as error:
            self._counts.database_down(str(error))
            return
        except (TransientError, ClusterUnavailable) as error:
            problem = str(error)
        self._relay.tell(problem)
        if not problem:
            self._counts.kafka_up()
        elif problem != self._counts.no_kafka:
            self._counts.kafka_down(problem)
