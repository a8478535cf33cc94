"""A partition that another client's open transaction holds up is said, with whose it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lane_failing import all_counted, finish
from lane_scenes import opened, retrying_counter, some
from lane_worlds import FakeWorld, World
from structlog.testing import capture_logs

from streams.lane.held_up import SAID_AFTER
from streams.ports import TP, Outgoing
from streams.testing.broker import Fault


@asynccontextmanager
async def left_open(world: World, tp: TP) -> AsyncIterator[None]:
    """A transaction of a client that has written a record, and commits at the end."""
    client = world.cluster.transactions("another-client")
    await client.start()
    await client.begin()
    await client.send({tp: [Outgoing(b"k", b"of another client", ())]})
    yield
    await client.commit()
    await client.discard()


async def test_an_open_transaction_is_named_until_it_ends(world: World) -> None:
    work = await retrying_counter(world)
    first, *behind = some(world, work, range(4), "a")
    lane = await opened(world, first)
    await all_counted(world, lane, 1)
    tp = TP(first.topic, first.partition)
    with capture_logs() as logs:
        async with left_open(world, tp):
            await world.post(*behind)
            watch = lane.lane.measures.held_up
            await world.until(lambda: tp in watch.partitions and watch.partitions[tp].by is not None)
            held = watch.partitions[tp]
            assert held.by.transactional_id == "another-client"
            assert held.by.first == held.at.first
            assert lane.lane.measures.lag == held.at.behind
            assert watch.longest() >= SAID_AFTER
            (said,) = [line for line in logs if line["event"] == "partition_held_up"]
            assert (said["topic"], said["partition"], said["transactional_id"]) == (*tp, "another-client")
            assert lane.lane.counters.handled == 1
        await world.until(lambda: not watch.partitions)
    assert [line["event"] for line in logs if line["event"].startswith("partition_")][
        -1
    ] == "partition_goes_on"
    assert watch.longest() == 0


async def test_a_lane_that_cannot_ask_whose_it_is_asks_again(fake: FakeWorld) -> None:
    work = await retrying_counter(fake)
    (first,) = some(fake, work, range(1), "a")
    lane = await opened(fake, first)
    await all_counted(fake, lane, 1)
    watch = lane.lane.measures.held_up
    async with left_open(fake, TP(first.topic, first.partition)):
        fake.cluster.inject(Fault.UNAVAILABLE)
        await fake.until(lambda: any(held.by for held in watch.partitions.values()))
        assert fake.cluster.happened[Fault.UNAVAILABLE] == 1
    await fake.until(lambda: not watch.partitions)
    await finish(fake, work, lane, [first])


async def test_short_transactions_of_others_are_not_said(fake: FakeWorld) -> None:
    work = await retrying_counter(fake)
    (first,) = some(fake, work, range(1), "a")
    lane = await opened(fake, first)
    await all_counted(fake, lane, 1)
    with capture_logs() as logs:
        for _ in range(4):
            async with left_open(fake, TP(first.topic, first.partition)):
                await fake.passes(SAID_AFTER / 2, real=0)
            await fake.passes(2, real=0)
    assert [line for line in logs if line["event"] == "partition_held_up"] == []
