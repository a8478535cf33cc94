"""One lane that gives up does not take the others along, an outage makes none give up, and both are seen."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from lane_checker import check
from lane_hosts import host_of, of_lane, some
from lane_workloads import asking, counting
from lane_worlds import FakeWorld, World
from test_lane_host import Fatal, hosting

import streams.policy.reopening
from streams.errors import ClusterUnavailable, OutcomeUnknown
from streams.lane.watchdog import STUCK_AFTER
from streams.ports import TP


class Outage:
    """Nothing is sent while it lasts."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.times = 0
        self.on = True
        self._error = error

    async def reach(self, point: str) -> None:
        if self.on and point == "sent":
            self.times += 1
            raise self._error()


async def test_a_lane_that_cannot_commit_is_quarantined_alone(
    world: World, fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.policy.reopening, "DELAY", 0.001)
    monkeypatch.setattr(streams.policy.reopening, "QUARANTINE", 5.0)
    await world.start(work := counting(world.name), partitions=2, lanes=2)
    events = some(world, work, range(3))
    ours, others = of_lane(world, events, 0), of_lane(world, events, 1)
    cluster = Refusing(world.cluster, work.output, dict(ours[5].headers)["ce_id"])
    host = host_of(world, fatal, cluster=cluster)
    await world.post(*events)
    host.assign({0, 1}, set(), world.app.sources)
    await world.until(lambda: host.lanes[0].state == "quarantined")
    assert cluster.refused > 5
    assert host.stuck() == [host.lanes[0]]
    await world.post(*(more := of_lane(world, some(world, work, range(3, 4)), 1)))
    done = len(others + more)
    await world.until(lambda: host.lanes[1].counters.handled == done and not host.lanes[1].backlog)
    await world.until_at({TP(work.source, 0): 5})
    await check(world, work, ours[:5] + others + more, settled=False)
    cluster.mended = True
    await world.settled(work.source)
    await host.stop()
    assert fatal == []
    await check(world, work, events + more)


class Refusing:
    """A cluster whose producer fails over what is sent in answer to one message, until it is mended."""

    def __init__(self, cluster: Any, topic: str, caused_by: bytes) -> None:
        self._cluster = cluster
        self._topic = topic
        self._caused_by = caused_by
        self.refused = 0
        self.mended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def transactions(self, transactional_id: str) -> Any:
        producer = self._cluster.transactions(transactional_id)
        send = producer.send

        async def refuse(batches: Any) -> Any:
            for tp, records in batches.items():
                if (
                    not self.mended
                    and tp.topic == self._topic
                    and any(dict(record.headers)["ce_causationid"] == self._caused_by for record in records)
                ):
                    self.refused += 1
                    raise KeyError("a mistake of ours")
            return await send(batches)

        producer.send = refuse
        return producer


@pytest.mark.parametrize("error", [OutcomeUnknown, ClusterUnavailable, TimeoutError, OSError])
async def test_an_outage_however_long_quarantines_nobody_but_is_seen(
    fake: FakeWorld, fatal: Fatal, error: type[Exception]
) -> None:
    await fake.start(work := counting(fake.name))
    await fake.post(*(events := some(fake, work, range(3))))
    outage = Outage(lambda: error("the network is down"))
    host = host_of(fake, fatal, outage)
    host.assign({0}, set(), fake.app.sources)
    start = fake.clock.now()
    await fake.until(lambda: fake.clock.now() - start > STUCK_AFTER + 10 and outage.times > 10)
    assert host.stuck() == [host.lanes[0]]
    outage.on = False
    await fake.settled(work.source)
    assert host.stuck() == []
    await host.stop()
    assert fatal == []
    await check(fake, work, events)


async def test_a_lane_is_stuck_after_work_has_waited_long(fake: FakeWorld, fatal: Fatal) -> None:
    go_on = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await go_on.wait()

    await fake.start(work := asking(fake.name, ask))
    host = await hosting(fake, fatal, {0})
    await fake.clock.advance(3 * STUCK_AFTER)
    assert host.stuck() == []
    await fake.post(fake.event(work, "a", 1))
    await fake.until(lambda: host.lanes[0].backlog)
    assert host.stuck() == []
    await fake.clock.advance(STUCK_AFTER + 1)
    assert host.stuck() == [host.lanes[0]]
    go_on.set()
    await fake.settled(work.source)
    assert host.stuck() == []


async def test_a_lane_that_cannot_open_is_stuck_without_work(fake: FakeWorld, fatal: Fatal) -> None:
    await fake.start(counting(fake.name))
    host = host_of(fake, fatal)
    host.assign({0}, set(), fake.app.sources)
    host.membership_unsure()
    await fake.clock.advance(STUCK_AFTER - 1)
    assert host.stuck() == []
    await fake.clock.advance(2)
    assert host.stuck() == [host.lanes[0]]
