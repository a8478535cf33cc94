"""A transaction that takes longer than its timeout is aborted, and its producer fenced: by nobody."""

from typing import Any

from lane_checker import check, check_store
from lane_relays import relay
from lane_scenes import counter, opened, some, stopped
from lane_worlds import FakeWorld, World

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


async def test_a_slow_lane_loops_no_more_than_may_be_held(fake: FakeWorld) -> None:
    work = relay(fake.name)
    await fake.start(work, partitions=1, transaction_timeout=TIMEOUT)
    fake.cluster = Slow(fake.cluster, fake.clock, work.middle)
    lane = await opened(fake, fake.event(work, "a", -30))
    await fake.until(lambda: fake.cluster.visible(work.end) or lane.lane.fenced > 10)
    await stopped(fake, lane, work.source, work.middle, work.end)
    assert 2 <= lane.lane.fenced <= 10
    assert len(await fake.records(work.middle)) == 31
    assert len(await fake.records(work.end)) == 1
