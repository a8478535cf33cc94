"""Sends operators' requests to lanes with an idempotent producer, which connects at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.brokers import Bootstrap
from streams.errors import ClusterUnavailable
from streams.kafka.clients import KafkaOptions, close_within, deliver_within
from streams.ports import TP, Outgoing

#: Seconds for which a message may wait for its broker. The caller waits that long, too.
_DELIVERY_TIMEOUT = 20.0


class OperationsProducer:
    """A worker's producer for operations. If a caller repeats a message with its id, lanes handle it once."""

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._producer: Any = None
        self._starting = asyncio.Lock()

    async def send(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        """Send each record to its partition and wait for all acknowledgements. Raises ClusterUnavailable."""
        try:
            producer = await self._started()
            sent = [
                await producer.send(
                    to.topic,
                    post.value,
                    key=post.key,
                    partition=to.partition,
                    headers=list(post.headers),
                )
                for to, post in posts
            ]
            await asyncio.gather(*sent)
        except (KafkaError, TimeoutError, OSError) as error:
            raise ClusterUnavailable(
                f"operations were not accepted by Kafka: {error!r}; try again"
            ) from error

    async def _started(self) -> Any:
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._options.connection(self._bootstrap),
                    enable_idempotence=True,
                    acks="all",
                    max_request_size=self._options.max_record or self._options.max_batch,
                )
                deliver_within(producer, _DELIVERY_TIMEOUT)
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
        return self._producer

    async def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            await close_within("the producer of operations", self._producer.stop)
