"""An ordinary member of a consumer group: the cluster hands it partitions, and keeps how far it has come.

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

#: Another member has the partitions now: it reads what was not committed again.
_MOVED = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError)
#: How long leaving the group may take, in seconds.
_LEAVE = 10.0


class GroupReader:
    """Reads topics read_committed, from the group's positions or from the beginning; use it `async with`.

    What was fetched comes again, here or elsewhere, until `commit`. Readers must bear that.

    Entering raises TopicMismatch when the cluster lacks a topic, ClusterUnavailable when no broker answers.
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
        # Checked first: a consumer that subscribes to what is not there may have it made, with any cut.
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
        """The next records, in order in each partition; waits up to `timeout` seconds, empty when nothing
        came. What cannot be read is a `Damaged` among the records. Raises ClusterUnavailable.
        """
        try:
            fetched = await self._consumer.getmany(timeout_ms=int(timeout * 1000), max_records=max_records)
        except KafkaError as error:
            raise ClusterUnavailable(f"group {self._group} could not fetch: {error!r}") from error
        return [record for records in fetched.values() for record in records]

    async def commit(self) -> None:
        """All that was fetched is done. Raises ClusterUnavailable; what has moved to another member meanwhile
        it reads again.
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
        except (KafkaError, TimeoutError) as error:  # the group will miss it, and go on
            log.warning("group_not_left", group=self._group, error=repr(error))
