"""Wherever a lane ended, and when two workers open it at once: positions and rows are those of Kafka."""

import pytest
from lane_checker import check, check_store, counts
from lane_scenes import counter, handled, opened, some, stopped
from lane_workloads import Workload
from lane_worlds import FakeWorld, Post, World

from streams.engine.life.positions.review import accept
from streams.engine.life.standby import Standby
from streams.engine.staging.changes import POSITIONS
from streams.errors import PositionLost, StoreBroken
from streams.ports import TP, Ports
from streams.testing.faults import NoFaults, ScriptedFaults

BOGUS = ("counts", b"\0\0\0\x01z", b"\0" * 8 + b'{"n":99}')


async def has_counted(world: World, numbers: range) -> tuple[Workload, list[Post]]:
    work = await counter(world)
    events = some(world, work, numbers)
    await handled(world, work, events)
    return work, events


def spoil(world: World, positions: dict[TP, int]) -> None:
    """A row that no changelog has gets into the store of a closed lane."""
    store = world.machine.open(0)
    store.apply([BOGUS], positions)
    store.close()


@pytest.mark.landing
async def test_a_store_ahead_of_its_changelog_is_rebuilt(world: World) -> None:
    work, events = await has_counted(world, range(2))
    spoil(world, {TP(world.app.layout.changelog("counts"), 0): 10_000})
    lane = await world.open()
    assert lane.lane.recovered > 0
    await lane.stop()
    await check_store(world)
    await check(world, work, events)


async def test_a_store_behind_the_changelogs_beginning_is_rebuilt(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    await handled(fake, work, some(fake, work, range(1)))
    spoil(fake, {changelog: 1})
    fake.cluster.truncate(changelog, 2)
    await accept(fake.app.layout, fake.cluster, changelog.topic, [0])
    lane = await fake.open()
    assert lane.lane.store.get("counts", BOGUS[1]) is None
    await lane.stop()


async def test_a_store_that_breaks_while_the_lane_runs_is_rebuilt(fake: FakeWorld) -> None:
    work, events = await has_counted(fake, range(2))
    lane = await fake.open()
    store = lane.lane.store
    broke = []

    def broken(*_: object) -> None:
        broke.append(True)
        raise StoreBroken("injected: a block has a wrong checksum")

    store.get = store.get_many = broken
    more = some(fake, work, range(2, 4))
    await fake.post(*more)
    await stopped(fake, lane, work.source)
    assert broke
    assert lane.lane.recovered > 0
    await check(fake, work, events + more)
    await check_store(fake)


async def test_deleted_rows_and_compacted_changelogs_are_recovered_as_they_are(fake: FakeWorld) -> None:
    work, _ = await has_counted(fake, range(5))
    for topic, table in fake.app.changelogs.items():
        if table != "inbox":
            fake.cluster.compact(topic, delete_retention=0)
    elsewhere = fake.stores()
    await handled(fake, work, some(fake, work, range(5, 7)), stores=elsewhere)
    assert await counts(fake) == dict.fromkeys("abcd", 7)
    await check_store(fake, stores=elsewhere)


@pytest.mark.landing
async def test_an_open_transaction_of_a_lost_owner_misleads_no_recovery(world: World) -> None:
    work = await counter(world, max_batch=4)
    events = some(world, work, range(4))
    await world.post(*events)
    world.faults.kill_at("sent", nth=3)
    await world.lane().killed()
    assert world.faults.pending == []
    elsewhere = world.stores()
    await handled(world, work, [], stores=elsewhere)
    await check(world, work, events)
    await check_store(world, stores=elsewhere)


@pytest.mark.promise("impossible-states")
@pytest.mark.parametrize("moved", [0, pytest.param(2, marks=pytest.mark.landing), 5])
async def test_a_group_that_was_reset_is_noticed(world: World, moved: int) -> None:
    work = await counter(world, partitions=1)
    await handled(world, work, some(world, work, range(4), "a"))
    await world.set_group({TP(work.source, 0): moved})
    lane = world.lane()
    with pytest.raises(PositionLost, match=rf"stands at {moved}, the changelog at 4"):
        await lane.ended()
    assert lane.handled == 0
    assert await counts(world) == {"a": 4}


@pytest.mark.promise("forgotten-offsets")
async def test_forgotten_positions_are_those_of_the_changelog(world: World) -> None:
    """A group without members loses its own after a while; nobody has reset anything."""
    work, events = await has_counted(world, range(3))
    await world.forget_group()
    assert await world.cluster.committed(world.name, [TP(work.source, 0)]) == {}
    more = some(world, work, range(3, 5))
    await handled(world, work, [*events, *more])  # and the group has all of its positions again
    await check(world, work, events + more)
    await check_store(world)


@pytest.mark.promise("impossible-states")
async def test_messages_deleted_before_they_were_handled_are_noticed(world: World) -> None:
    work = await counter(world, settled=True, partitions=1)
    await handled(world, work, some(world, work, range(4), "a"))
    await world.truncate(TP(work.source, 0), 4)
    await handled(world, work, some(world, work, range(4, 8), "a"))
    assert await counts(world) == {"a": 8}, "none is lost of those that were handled"
    await world.post(*(world.event(work, "a", i) for i in range(8, 12)))
    await world.truncate(TP(work.source, 0), 10)
    with pytest.raises(PositionLost, match="handled up to 8, but the log now begins at 10: 2 messages"):
        await world.lane().ended()


async def test_positions_are_kept_by_topic_and_partition(world: World) -> None:
    work = await counter(world, settled=True, partitions=3)
    await handled(world, work, some(world, work, range(2)))
    store = world.machine.open(0)
    recorded = {(key[2:].decode(), key[1]): int(value) for key, value in store.scan(POSITIONS)}
    store.close()
    committed = await world.cluster.committed(
        world.name, [TP(topic, p) for topic in world.app.sources for p in range(3)]
    )
    assert recorded == {tuple(tp): offset for tp, offset in committed.items()}


@pytest.mark.landing
async def test_a_standby_follows_and_who_takes_over_recovers_little(world: World) -> None:
    work = await counter(world)
    elsewhere = world.stores()
    standby = Standby(world.app, 0, Ports(world.cluster, elsewhere, world.clock, NoFaults()))
    task = world.spawn(standby.run())
    events = some(world, work, range(5))
    lane = await opened(world, *events)
    await world.settled(work.source)
    written = sum([len(await world.records(topic)) for topic in world.app.changelogs])
    await world.until(lambda: standby.records == written)
    standby.stop()
    await world.until(task.done)
    task.result()
    await check_store(world, stores=elsewhere)
    await lane.stop()
    more = some(world, work, range(5, 6))
    taken_over = await handled(world, work, more, stores=elsewhere)
    assert taken_over.lane.recovered == 0
    await check(world, work, events + more)
    await check_store(world, stores=elsewhere)


@pytest.mark.promise("protocol-model")
@pytest.mark.landing
async def test_a_lane_overtaken_while_it_recovers_opens_again(world: World) -> None:
    work = await counter(world)
    events = some(world, work, range(2))
    await handled(world, work, events)

    faults = ScriptedFaults()
    pause = faults.pause_at("recovering")
    elsewhere = world.stores()
    owner = world.lane(stores=elsewhere, faults=faults)
    await pause.reached()
    # A worker that has not heard yet that it lost the lane: it fences the owner, and commits.
    late = await world.open()
    more = some(world, work, range(2, 4))
    await world.post(*more)
    await stopped(world, late, work.source)
    pause.resume()
    await world.until(lambda: owner.lane.state == "open")

    last = [world.event(work, key, 4) for key in "abcd"]
    await world.post(*last)
    await stopped(world, owner, work.source)
    assert faults.pending == []
    await check(world, work, events + more + last)
    await check_store(world, stores=elsewhere)
