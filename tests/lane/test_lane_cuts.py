"""Owners under another number of lanes: whoever opens a lane fences all that have a partition of it."""

from typing import Any

import pytest
from lane_checker import check, check_store
from lane_hosts import Starts
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, Running, World

from streams.engine.life.host import LaneHost
from streams.engine.life.lane import Lane
from streams.engine.life.positions.cuts import Cuts
from streams.engine.life.session import shared_by
from streams.errors import LayoutMismatch
from streams.model.application import Application
from streams.ports import TP, Ports
from streams.testing.faults import NoFaults, Pause, ScriptedFaults

PARTITIONS = 4
CHANGES = [(4, 2), (2, 4), (4, 3)]
POINTS = ("staged", "sent", "offsets_sent")
#: Of the changes and the points, what stands for them on Kafka in `make test`.
LANDING = ((4, 2), "sent")
#: A key for each partition.
KEYS = "abcdefgh"


def some(world: World, work: Any, numbers: range) -> list[Post]:
    events = [world.event(work, key, i) for i in numbers for key in KEYS]
    assert {event.partition for event in events} == set(range(PARTITIONS))
    return events


async def opened(world: World, app: Application, **options: Any) -> list[Running]:
    lanes = [world.lane(n, app=app, **options) for n in range(app.layout.lanes)]
    await world.until(lambda: all(lane.lane.state == "open" for lane in lanes))
    return lanes


async def ends_with_another_cut(world: World, old: Running) -> None:
    with pytest.raises(LayoutMismatch, match="STEADFAUST_LANES"):
        await old.ended()


async def close(world: World, work: Workload, lanes: list[Running]) -> None:
    """All is handled and settled; nobody has fenced these lanes meanwhile."""
    await world.settled(work.source)
    for lane in lanes:
        await lane.stop()
        assert lane.lane.fenced == 0


def beside(world: World, cluster: Any, app: Application, number: int, **more: Any) -> Running:
    stores, faults = more.pop("stores", world.machine), more.pop("faults", NoFaults())
    ports = Ports(cluster, stores, world.clock, faults)
    world.running.append(Running(Lane(app, number, ports, shared_by(app, ports, **more)), world))
    return world.running[-1]


@pytest.mark.promise("lane-count", "fewer lanes, more, and an odd number; three points of the commit")
@pytest.mark.parametrize(
    ("before", "after", "point"),
    [
        pytest.param(*change, point, marks=[pytest.mark.landing] if (change, point) == LANDING else [])
        for change in CHANGES
        for point in POINTS
    ],
)
async def test_owners_frozen_under_another_cut_are_fenced_and_change_nothing(
    world: World, before: int, after: int, point: str
) -> None:
    work = counting(world.name, settled=True)
    await world.start(work, partitions=PARTITIONS, lanes=before)
    await world.post(*(events := some(world, work, range(2))))
    frozen: list[tuple[Running, Pause]] = []
    for number in range(before):
        pause = (faults := ScriptedFaults()).pause_at(point)
        frozen.append((world.lane(number, faults=faults), pause))
    for _, pause in frozen:
        await pause.reached()

    world.app = world.cut_into(work, lanes=after)
    new = await opened(world, world.app, stores=(elsewhere := world.stores()))
    await world.post(*(more := some(world, work, range(2, 4))))
    await world.settled(work.source)  # nobody waits for what the frozen ones have open
    for old, pause in frozen:
        pause.resume()
        await ends_with_another_cut(world, old)
        assert (old.lane.fenced, old.lane.commits) == (1, 0)

    await world.post(*(last := some(world, work, range(4, 5))))
    await close(world, work, new)
    await check(world, work, events + more + last)
    for number in range(after):
        await check_store(world, number, elsewhere)


class Held:
    """The cluster as a worker sees it that stands still before its next producer starts, or right after."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.pauses: dict[str, Pause] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def pause(self, when: str) -> Pause:
        self.pauses[when] = Pause()
        return self.pauses[when]

    async def hold(self, when: str) -> None:
        if when in self.pauses:
            await self.pauses.pop(when).hold()

    def transactions(self, transactional_id: str) -> Any:
        producer = self._cluster.transactions(transactional_id)
        start = producer.start

        async def held() -> None:
            await self.hold("before its start")
            await start()
            await self.hold("after its start")

        producer.start = held
        return producer


@pytest.mark.promise("lane-count")
@pytest.mark.parametrize("when", ["before its start", "after its start"])
async def test_an_owner_frozen_while_opening_under_another_cut_stays_shut(world: World, when: str) -> None:
    work = counting(world.name)
    old_app = await world.start(work, partitions=PARTITIONS, lanes=4)
    await world.post(*(events := some(world, work, range(2))))
    for lane in await opened(world, old_app):
        await lane.stop()
    cluster = Held(world.cluster)
    pause = cluster.pause(when)
    old = beside(world, cluster, old_app, 1, cuts=await entered(world, old_app))
    await pause.reached()

    world.app = world.cut_into(work, lanes=2)
    new = await opened(world, world.app, stores=(elsewhere := world.stores()))
    await world.settled(work.source)
    pause.resume()
    await ends_with_another_cut(world, old)
    await world.post(*(more := some(world, work, range(2, 4))))
    await close(world, work, new)
    await check(world, work, events + more)
    await check_store(world, 1, elsewhere)


async def entered(world: World, app: Application) -> Cuts:
    cuts = Cuts(app.layout, world.cluster)
    lane = await world.open(0, app=app, stores=world.stores(), cuts=cuts)
    await lane.stop()
    return cuts


@pytest.mark.promise("lane-count")
async def test_a_cut_taken_up_again_lets_its_workers_go_on(world: World) -> None:
    work = counting(world.name)
    four = await world.start(work, partitions=PARTITIONS, lanes=4)
    two = world.cut_into(work, lanes=2)
    posted: list[Post] = []
    workers: list[Cuts] = []
    for turn, app in enumerate((four, two, four)):
        await world.post(*(events := some(world, work, range(turn, turn + 1))))
        posted += events
        workers.append(Cuts(app.layout, world.cluster))
        await close(world, work, await opened(world, app, stores=world.stores(), cuts=workers[-1]))
    left = world.lane(1, app=two, stores=world.stores(), cuts=workers[1])
    await ends_with_another_cut(world, left)
    await world.post(*(last := some(world, work, range(3, 4))))
    await close(world, work, await opened(world, four, stores=world.stores(), cuts=workers[0]))
    await check(world, work, posted + last)


@pytest.mark.promise("lane-count")
async def test_a_worker_of_an_older_cut_takes_nothing_back(world: World, fatal: list[BaseException]) -> None:
    work = counting(world.name)
    four = await world.start(work, partitions=PARTITIONS, lanes=4)
    late = Cuts(four.layout, world.cluster)
    await late.look()
    two = world.cut_into(work, lanes=2)
    new = await opened(world, two)
    ports = Ports(world.cluster, world.stores(), world.clock, NoFaults())
    host = LaneHost(four, ports, fatal.append, shared_by(four, ports, late))
    world.at_end.append(host.stop)
    host.assign(range(4), (), four.sources)
    await world.until(lambda: len(fatal) == 4)
    assert {type(error) for error in fatal} == {LayoutMismatch}
    world.app = two
    await world.post(*(events := some(world, work, range(2))))
    await close(world, work, new)
    await check(world, work, events)


@pytest.mark.promise("lane-count")
async def test_old_ids_are_fenced_once_for_each_cut(fake: FakeWorld) -> None:
    work = counting(fake.name)
    four = await fake.start(work, partitions=PARTITIONS, lanes=4)
    for old in await opened(fake, four):
        await old.stop()
    fake.app = two = fake.cut_into(work, lanes=2)
    cluster = Starts(fake.cluster)
    (faults := ScriptedFaults()).raise_at("staged")
    running = beside(fake, cluster, two, 0, stores=fake.stores(), faults=faults)
    await fake.until(lambda: running.lane.state == "open")
    assert cluster.started == 1 + 2  # its own, and lanes 0 and 2 of four
    events = [event for event in some(fake, work, range(2)) if two.layout.lane_of(event.partition) == 0]
    await fake.post(*events)
    await fake.settled(work.source)
    assert running.lane.reopened == 1
    assert cluster.started == 4
    await running.stop()
    await check(fake, work, events)


async def test_owners_of_a_cut_taken_up_again_are_fenced_again(world: World) -> None:
    """A worker that has fenced the owners of a cut before does so again when that cut was back meanwhile."""
    work = counting(world.name)
    four = await world.start(work, partitions=PARTITIONS, lanes=4, transaction_timeout=900.0)
    two = world.cut_into(work, lanes=2)
    for lane in await opened(world, four, stores=world.stores()):
        await lane.stop()
    worker = await entered(world, two)
    await world.post(*(events := some(world, work, range(2))))
    pause = (faults := ScriptedFaults()).pause_at("sent")
    back = world.lane(0, app=four, stores=world.stores(), faults=faults)
    await pause.reached()
    await (await world.open(1, app=two, stores=world.stores())).stop()  # it fences those of its partitions
    world.app = two
    new = await opened(world, two, stores=world.stores(), cuts=worker)
    assert [lane.lane.reopened for lane in new] == [0, 0], "they waited for what the other had open"
    pause.resume()
    await ends_with_another_cut(world, back)
    assert (back.lane.fenced, back.lane.commits) == (1, 0)
    await close(world, work, new)
    await check(world, work, events)


async def test_records_that_are_no_cut_are_passed_over(world: World) -> None:
    work = counting(world.name)
    app = await world.start(work, partitions=PARTITIONS, lanes=2)
    for key in (b"cut:", b"cut:0", b"cut:5", b"cut:-1", b"cut:\xff", b"cut:2\xb2", b"cut:" + b"9" * 5000):
        await world.post(Post(app.layout.announcements, 0, key, b"x", []))
    await world.post(*(events := some(world, work, range(1))))
    await close(world, work, await opened(world, app))
    await check(world, work, events)


@pytest.mark.promise("lane-count")
async def test_lanes_that_fence_the_same_owner_at_once_all_open(world: World) -> None:
    """One lane before, four after: each of them fences the one, which has a transaction open."""
    work = counting(world.name)
    one = await world.start(work, partitions=PARTITIONS, lanes=1)
    await world.post(*(events := some(world, work, range(2))))
    pause = (faults := ScriptedFaults()).pause_at("sent")
    old = world.lane(0, app=one, faults=faults)
    await pause.reached()
    world.app = world.cut_into(work, lanes=4)
    new = await opened(world, world.app, stores=world.stores())
    assert [lane.lane.reopened for lane in new] == [0] * 4
    await world.settled(work.source)
    pause.resume()
    await ends_with_another_cut(world, old)
    await close(world, work, new)
    await check(world, work, events)


async def test_the_cut_is_recorded_once_and_survives_compaction(fake: FakeWorld) -> None:
    work = counting(fake.name)
    four = await fake.start(work, partitions=PARTITIONS, lanes=4)
    two = fake.cut_into(work, lanes=2)
    announcements = TP(four.layout.announcements, 0)
    for app in (four, two, four, four):
        for lane in await opened(fake, app, stores=fake.stores()):
            await lane.stop()
        fake.cluster.compact(announcements.topic)
    cuts = [entry.record.key for entry in fake.cluster.entries(announcements) if entry.record]
    assert cuts == [b"cut:2", b"cut:4"]
