"""An ordinary member of a consumer group, with partitions and committed offsets from Kafka.

For programs that copy what lanes publish to another place, such as a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError, IllegalGenerationError, KafkaError, RebalanceInProgressError

from streams.brokers import Bootstrap
from streams.errors import ClusterUnavailable
from streams.host.client import partitions_of
from streams.kafka.clients import KafkaOptions
from streams.kafka.partition_records import Isolation
from streams.ports import Record

log = structlog.get_logger(__name__)

#: Errors after which another member has the partitions. It reads uncommitted records again.
_MOVED = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError)
#: Maximum seconds for leaving the group.
_LEAVE = 10.0


class GroupReader:
    """Reads topics read_committed, from the group's offsets or from the beginning. Use it with `async with`.

    Fetched records may come again, here or on another member, until `commit`. Callers have to tolerate that.

    Entering raises TopicMismatch if the cluster lacks a topic, ClusterUnavailable if no broker answers.
    """

    def __init__(
        self, bootstrap: Bootstrap, group: str, topics: Iterable[str], options: KafkaOptions | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._topics = list(topics)
        self._options = options or KafkaOptions()
        self._consumer: Any = None

    async def __aenter__(self) -> Self:
        options = self._options
        # A consumer that subscribes to a missing topic may create it, with any number of partitions.
        await partitions_of(self._bootstrap, self._topics)
        self._consumer = AIOKafkaConsumer(
            *self._topics,
            **options.connection(self._bootstrap),
            group_id=self._group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=options.max_fetch,
            max_partition_fetch_bytes=options.max_partition_fetch,
            fetch_max_wait_ms=int(options.fetch_wait * 1000),
            check_crcs=Isolation(options.max_unpacked),
        )
        try:
            async with asyncio.timeout(options.metadata_timeout):
                await self._consumer.start()
        except BaseException as error:
            await self._close()
            if isinstance(error, (KafkaError, TimeoutError)):
                raise ClusterUnavailable(f"group {self._group} could not be joined: {error!r}") from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def fetch(self, *, max_records: int = 1000, timeout: float = 1.0) -> list[Record]:
        """Wait up to `timeout` seconds for the next records, in order within each partition. The list is
        empty if none arrive. A record that cannot be read is a `Damaged`. Raises ClusterUnavailable.
        """
        try:
            fetched = await self._consumer.getmany(timeout_ms=int(timeout * 1000), max_records=max_records)
        except KafkaError as error:
            raise ClusterUnavailable(f"group {self._group} could not fetch: {error!r}") from error
        return [record for records in fetched.values() for record in records]

    async def commit(self) -> None:
        """Commit the offsets of all fetched records. If partitions have moved to another member, nothing is
        committed, and that member reads them again. Raises ClusterUnavailable.
        """
        try:
            await self._consumer.commit()
        except _MOVED as error:
            log.info("group_position_moved", group=self._group, error=repr(error))
        except KafkaError as error:
            raise ClusterUnavailable(f"group {self._group} could not commit: {error!r}") from error

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE):
                await self._consumer.stop()
        except (KafkaError, TimeoutError) as error:  # the group removes the member after its session timeout
            log.warning("group_not_left", group=self._group, error=repr(error))
