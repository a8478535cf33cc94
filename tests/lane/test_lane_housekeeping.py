"""What a lane asks the cluster now and then ends nothing; an open transaction that holds it up is named."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lane_failing import all_count, finish
from lane_scenes import opened, post, retrying_counter, some
from lane_workloads import counting, reminding
from lane_worlds import FakeWorld, World
from structlog.testing import capture_logs

from streams.engine.life.housekeeping import HOUSEKEEPING
from streams.engine.way.held_up import SAID_AFTER
from streams.ports import TP, Outgoing
from streams.testing.broker import Fault


@pytest.mark.slow("six thousand ticks")
async def test_a_question_without_answer_does_not_reopen_a_lane(fake: FakeWorld) -> None:
    await fake.start(work := counting(fake.name), partitions=1)
    lane = await fake.open()
    await fake.until(lambda: lane.lane.commits)  # its first positions
    fake.cluster.inject(Fault.UNAVAILABLE, times=2)
    with capture_logs() as logs:
        await fake.clock.advance(HOUSEKEEPING + 10)
        await fake.until(lambda: not fake.cluster.pending)
        await fake.post(fake.event(work, "a", 0))
        await fake.until(lambda: lane.handled == 1)
    assert lane.lane.reopened == 0
    assert lane.lane.state == "open"
    assert len([entry for entry in logs if entry["event"] == "lane_cannot_ask"]) == 2


async def test_timers_ring_while_a_question_waits_for_its_answer(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.start(work := reminding(fake.name), partitions=1)
    lane = await fake.open()
    asked = asyncio.Event()

    async def silent(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(fake.cluster, "identity", silent)
    await fake.clock.advance(HOUSEKEEPING + 10)
    await fake.until(asked.is_set)
    due = fake.clock.now() + 2
    await fake.post(post(fake, work.asked(k="a", due=due)))
    await fake.until(lambda: lane.lane.counters.timers == 1)
    assert fake.clock.now() < due + 1


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
    await all_count(world, lane, 1)
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
    events = [line["event"] for line in logs if line["event"].startswith("partition_")]
    assert events[-1] == "partition_goes_on"
    assert watch.longest() == 0


async def test_only_long_transactions_of_others_are_asked_about_again(fake: FakeWorld) -> None:
    work = await retrying_counter(fake)
    (first,) = some(fake, work, range(1), "a")
    lane = await opened(fake, first)
    await all_count(fake, lane, 1)
    watch, tp = lane.lane.measures.held_up, TP(first.topic, first.partition)
    with capture_logs() as logs:
        for _ in range(4):
            async with left_open(fake, tp):
                await fake.passes(SAID_AFTER / 2, real=0)
            await fake.passes(2, real=0)
    assert [line for line in logs if line["event"] == "partition_held_up"] == []
    async with left_open(fake, tp):
        fake.cluster.inject(Fault.UNAVAILABLE)
        await fake.until(lambda: any(held.by for held in watch.partitions.values()))
        assert fake.cluster.happened[Fault.UNAVAILABLE] == 1
    await fake.until(lambda: not watch.partitions)
    await finish(fake, work, lane, [first])
