"""Sends operators' messages to lanes: an ordinary idempotent producer, connected when first used."""

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

#: Seconds for which a message waits for its broker; the caller waits as long.
_DELIVERY_TIMEOUT = 20.0


class OperationsProducer:
    """Of one worker. A message that is sent again after an error has the same id, so lanes take it once."""

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._producer: Any = None
        self._starting = asyncio.Lock()

    async def send(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        """Send each where it goes; returns when the cluster has all. Raises ClusterUnavailable."""
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
        """Let go of the connections."""
        if self._producer is not None:
            await close_within("the producer of operations", self._producer.stop)
