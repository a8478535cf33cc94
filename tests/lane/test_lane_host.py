"""A worker's lanes follow its membership."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from lane_checker import check, check_store, counts
from lane_hosts import Starts, host_of, of_lane, opened
from lane_pausing import some
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, World

import streams.engine.life.host
from streams.engine.life.host import LaneHost
from streams.errors import HandlerFailed, OutcomeUnknown
from streams.model.choreography import choreography
from streams.ports import TP
from streams.testing.clients import FakeReader
from tests.waiting import BOUND

Fatal = list[BaseException]


async def hosting(world: World, fatal: Fatal, lanes: set[int], **more: Any) -> LaneHost:
    host = host_of(world, fatal, **more)
    host.assign(lanes, set(), world.app.sources)
    await opened(world, host)
    return host


async def with_an_unknown_outcome(fake: FakeWorld, fatal: Fatal) -> tuple[LaneHost, Workload]:
    await fake.start(work := counting(fake.name))
    fake.faults.raise_at("sent", error=OutcomeUnknown("lost"))
    return await hosting(fake, fatal, {0}, faults=fake.faults), work


@pytest.mark.landing
async def test_lanes_that_stay_go_on_and_the_others_move(world: World, fatal: Fatal) -> None:
    await world.start(work := counting(world.name), partitions=4, lanes=4)
    other = host_of(world, fatal, stores=world.stores())
    other.assign(set(), {0, 1, 2, 3}, world.app.sources)  # a standby that is promoted hands over its store
    one = await hosting(world, fatal, {0, 1, 2, 3})
    await world.post(*some(world, work, range(3)))
    await world.settled(work.source)
    staying = {number: one.lanes[number] for number in (0, 1)}
    one.membership_unsure()
    await world.post(*some(world, work, range(3, 5)))
    one.assign({0, 1}, {2, 3}, world.app.sources)
    other.assign({2, 3}, {0, 1}, world.app.sources)
    await one.settled()
    assert one.lanes == staying
    assert set(one.standbys) == {2, 3}
    await opened(world, other)
    await world.settled(work.source)
    await other.stop()
    await one.stop()
    assert [lane.reopened for lane in staying.values()] == [0, 0]
    assert fatal == []
    await check(world, work, some(world, work, range(5)))
    for lane in (0, 1):
        await check_store(world, lane)


async def test_an_application_without_handlers_has_no_lanes(fake: FakeWorld, fatal: Fatal) -> None:
    await fake.start(SimpleNamespace(wiring=choreography(), resources={}))
    host = host_of(fake, fatal)
    host.assign({0}, {1}, fake.app.sources)
    await host.settled()
    assert (host.lanes, host.standbys, fatal) == ({}, {}, [])
    await host.stop()


async def test_a_lane_is_made_anew_when_its_topics_change(fake: FakeWorld, fatal: Fatal) -> None:
    """A member that is back soon is given what its predecessor had: a topic may be gone since."""
    await fake.start(work := counting(fake.name, settled=True))
    gone = f"{work.source}.gone"
    fake.cluster.create_topic(gone, 1)
    fake.cluster.produce(TP(gone, 0), b"a", b"1")
    host = host_of(fake, fatal)
    host.assign({0}, set(), [work.source, gone])
    await opened(fake, host)
    before = host.lanes[0]
    await fake.post(*some(fake, work, range(1)))
    await fake.settled(work.source)
    assert (set(before.topics), before.reopened) == ({work.source}, 0)
    host.assign({0}, set(), list(reversed([work.source])))
    assert host.lanes[0] is before
    host.assign({0}, set(), fake.app.sources)
    await host.settled()
    assert host.lanes[0] is not before
    await opened(fake, host)
    await fake.post(*some(fake, work, range(1, 2)))
    await fake.until(lambda: host.lanes[0].counters.handled == 24)
    await fake.settled(*fake.app.sources)
    await host.stop()
    await check(fake, work, some(fake, work, range(2)))


async def test_no_lane_opens_while_membership_is_unsure(fake: FakeWorld, fatal: Fatal) -> None:
    host, work = await with_an_unknown_outcome(fake, fatal)
    lane = host.lanes[0]
    host.membership_unsure()
    await fake.post(*some(fake, work, range(1)))
    await fake.until(lambda: lane.reopened == 1)
    await fake.clock.advance(60)
    assert lane.state == "opening"
    new = await fake.open(stores=fake.stores())
    await fake.settled(work.source)
    await new.stop()
    host.assign({0}, set(), fake.app.sources)
    await opened(fake, host)
    assert host.lanes[0] is lane
    assert (lane.fenced, new.lane.fenced) == (0, 0)


async def test_a_lane_that_may_open_no_more_does_not(fake: FakeWorld, fatal: Fatal) -> None:
    await fake.start(counting(fake.name))
    for turns in range(12):  # until a rebalance begins again
        cluster = Starts(fake.cluster)
        host = host_of(fake, fatal, cluster=cluster)
        host.assign({0}, set(), fake.app.sources)
        await fake.turns(turns)
        host.membership_unsure()
        started = cluster.started
        await fake.turns()
        assert cluster.started == started, turns
        if turns == 0:
            for _ in range(2):
                host.assign({0}, set(), fake.app.sources)
                host.membership_unsure()
                await fake.clock.advance(1.0)
            assert (cluster.started, host.lanes[0].state) == (0, "opening")
            host.assign({0}, set(), fake.app.sources)
            await opened(fake, host)
        await host.stop()
    assert fatal == []


async def test_a_worker_stops_while_membership_is_unsure(fake: FakeWorld, fatal: Fatal) -> None:
    host, work = await with_an_unknown_outcome(fake, fatal)
    host.membership_unsure()
    await fake.post(*some(fake, work, range(1)))
    await fake.until(lambda: host.lanes[0].reopened == 1)
    async with asyncio.timeout(BOUND):
        await host.stop()
    assert host.lanes == {}


async def test_an_unreadable_row_is_fatal_to_the_worker(world: World, fatal: Fatal) -> None:
    await world.start(work := counting(world.name))

    def fail(_: object) -> None:
        raise HandlerFailed("a row of table counts cannot be read")

    work.hooks.before = fail
    host = host_of(world, fatal)
    host.assign({0}, set(), world.app.sources)
    await world.post(world.event(work, "a", 1))
    await world.until(lambda: fatal)
    assert isinstance(fatal[0], HandlerFailed)
    await host.stop()
    assert host.lanes == {}
    assert await counts(world) == {}


async def test_what_ends_a_worker_comes_before_its_log_line(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the line: a log that cannot be written left the worker without its lane."""
    happened: list[str] = []

    class Log:
        def critical(self, event: str, **_: object) -> None:
            happened.append(event)
            raise OSError(28, "No space left on device")

    async def cancelled(_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(streams.engine.life.host, "log", Log())
    monkeypatch.setattr(FakeReader, "close", cancelled)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # which is told of what Log raises
    fatal: Any = _Fatal(happened)
    _, work = await with_an_unknown_outcome(fake, fatal)
    await fake.post(*some(fake, work, range(1)))
    await fake.until(lambda: "lane_stopped" in happened)
    assert happened == ["fatal", "lane_stopped"]


class _Fatal(list[BaseException]):
    def __init__(self, happened: list[str]) -> None:
        super().__init__()
        self._happened = happened

    def append(self, error: BaseException) -> None:
        self._happened.append("fatal")
        super().append(error)


async def test_a_lane_cancelled_by_nobody_is_fatal_to_the_worker(
    fake: FakeWorld, fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a client library awaits a task that it has cancelled: the lane ended without a word."""

    async def cancelled(_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(FakeReader, "close", cancelled)
    _, work = await with_an_unknown_outcome(fake, fatal)
    await fake.post(*some(fake, work, range(1)))
    await fake.until(lambda: fatal)
    assert str(fatal[0]) == "lane-0 was cancelled unexpectedly"


async def test_a_lane_that_somebody_cancels_is_not_fatal(fake: FakeWorld, fatal: Fatal) -> None:
    await fake.start(counting(fake.name))
    host = await hosting(fake, fatal, {0})
    host._tasks[host.lanes[0]].cancel()
    await host.stop()
    assert fatal == []
    host.assign({0}, set(), fake.app.sources)
    assert host.lanes == {}, "what is assigned after the stop does not start"
    fake.machine.open(0).close()


async def test_a_lane_without_its_position_ends_alone_and_may_return(world: World, fatal: Fatal) -> None:
    await world.start(work := counting(world.name), partitions=2, lanes=2)
    await world.post(*(events := some(world, work, range(2))))
    host = await hosting(world, fatal, {0, 1})
    await world.settled(work.source)
    host.assign({1}, set(), world.app.sources)
    await host.settled()
    first = TP(work.source, 0)
    right = (await world.cluster.committed(world.name, [first]))[first]
    await world.set_group({first: 0})
    host.assign({0, 1}, set(), world.app.sources)
    await world.until(lambda: host.lanes[0].state == "closed")
    assert host.stuck() == [host.lanes[0]]
    assert "Someone has reset one of them" in str(host.lanes[0].error)
    more = some(world, work, range(2, 3))
    await world.post(*of_lane(world, more, 1))
    await world.until(lambda: host.lanes[1].counters.handled >= len(of_lane(world, events + more, 1)))
    assert fatal == []
    await world.set_group({first: right})
    host.assign({1}, set(), world.app.sources)
    await host.settled()
    host.assign({0, 1}, set(), world.app.sources)
    await opened(world, host)
    await world.post(*of_lane(world, more, 0))
    await world.settled(work.source)
    await host.stop()
    await check(world, work, events + more)


async def test_nothing_else_waits_for_a_hand_over(fake: FakeWorld, fatal: Fatal) -> None:
    await fake.start(work := counting(fake.name), partitions=3, lanes=3)
    pause = fake.faults.pause_at("sent")
    host = await hosting(fake, fatal, {0, 1}, faults=fake.faults)
    await fake.post(*of_lane(fake, some(fake, work, range(1)), 0))
    await pause.reached()
    leaving = host.lanes[0]
    host.assign({1, 2}, {0}, fake.app.sources)  # in a callback during which no heartbeat is sent
    await fake.until(lambda: host.lanes[2].state == "open")
    assert host.lanes[0] is leaving
    assert host.standbys == {}
    pause.resume()
    await fake.until(lambda: 0 in host.standbys)
    assert set(host.lanes) == {1, 2}
    assert leaving.commits == 1
    await host.stop()
    assert fatal == []
