"""A transaction that takes longer than its timeout is aborted, and its producer fenced: by nobody."""

from __future__ import annotations

from typing import Any

from lane_checker import check, check_store
from lane_scenes import counter, opened, some
from lane_worlds import World

#: Seconds: what each message adds to its transaction, and what a transaction may take.
EACH, TIMEOUT = 0.3, 1.0
MESSAGES = 16


class Slow:
    """The cluster beside brokers, or a worker, so busy that a transaction's time goes with its size."""

    def __init__(self, cluster: Any, clock: Any, topic: str) -> None:
        self._cluster = cluster
        self._clock = clock
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def transactions(self, transactional_id: str) -> Any:
        producer = self._cluster.transactions(transactional_id)
        send = producer.send

        async def slowly(batches: Any) -> Any:
            ends = await send(batches)
            outputs = sum(len(records) for tp, records in batches.items() if tp.topic == self._topic)
            await self._clock.sleep(EACH * outputs)
            return ends

        producer.send = slowly
        return producer


async def test_a_transaction_slower_than_its_timeout_becomes_smaller(world: World) -> None:
    work = await counter(world, transaction_timeout=TIMEOUT, max_batch=MESSAGES)
    world.cluster = Slow(world.cluster, world.clock, work.output)
    events = some(world, work, range(MESSAGES // 4))
    lane = await opened(world, *events)
    await world.settled(work.source)
    assert lane.lane.fenced >= 2  # the first may be another owner's doing
    await lane.stop()
    await check(world, work, events)
    await check_store(world)
