"""What is committed in topics, as a plain client reads it: each look goes on where the last one ended."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

Answer = TypeVar("Answer")


class Committed:
    """The committed records of the topics that were asked for, all of them ever."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        """Connects when it is asked for the first time; `partitions` of each topic."""
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._runner = asyncio.Runner()
        self._consumer: Any = None
        self._found: dict[TopicPartition, list[Any]] = {}
        self._positions: dict[TopicPartition, int] = {}

    def records(self, *topics: str) -> list[Any]:
        """Every committed record of the topics, those of a partition in their order."""

        async def read(consumer: Any) -> list[Any]:
            tps = self._of(topics)
            await self._follow(consumer, tps)
            await self._to_end(consumer, tps)
            return [record for tp in tps for record in self._found[tp]]

        return self._ask(read)

    def ends(self, topic: str) -> int:
        """The sum of the topic's ends: cheap to ask, transaction markers are counted too."""

        async def ask(consumer: Any) -> int:
            return sum((await consumer.end_offsets(self._of([topic]))).values())

        return self._ask(ask)

    def close(self) -> None:
        try:
            if self._consumer is not None:
                self._runner.run(self._consumer.stop())
        finally:
            self._runner.close()

    def _of(self, topics: Sequence[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for topic in topics for n in range(self._partitions)]

    def _ask(self, question: Callable[[Any], Coroutine[Any, Any, Answer]]) -> Answer:
        async def asked() -> Answer:
            if self._consumer is None:
                consumer = AIOKafkaConsumer(
                    bootstrap_servers=self._bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50
                )
                await consumer.start()
                self._consumer = consumer
                self._assign(consumer)
            try:
                return await question(self._consumer)
            except BaseException:  # a broker that went away, such as: the next look has a client of its own
                consumer, self._consumer = self._consumer, None
                await consumer.stop()
                raise

        return self._runner.run(asked())

    async def _follow(self, consumer: Any, tps: Sequence[TopicPartition]) -> None:
        new = [tp for tp in tps if tp not in self._found]
        if not new:
            return
        self._positions |= await consumer.beginning_offsets(new)
        self._found |= {tp: [] for tp in new}
        self._assign(consumer)

    def _assign(self, consumer: Any) -> None:
        if self._positions:
            consumer.assign(list(self._positions))
        for tp, position in self._positions.items():
            consumer.seek(tp, position)

    async def _to_end(self, consumer: Any, tps: Sequence[TopicPartition]) -> None:
        ends = await consumer.end_offsets(tps)
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                self._found[tp].extend(records)
                self._positions[tp] = records[-1].offset + 1
