"""A lane notices when a topic is not the one that its positions and rows belong to, and says how to go on."""

from collections.abc import Iterable

import pytest
from lane_checker import check, check_store, counts
from lane_desk import Broken, letter_ids, letters, operated, operation
from lane_scenes import counter, handled, some, stopped
from lane_workloads import Workload
from lane_worlds import FakeWorld, World

import streams.engine.way.commit
from streams.engine.life.housekeeping import HOUSEKEEPING
from streams.engine.life.positions.review import At, accept, standings
from streams.engine.life.standby import Standby
from streams.errors import ChangelogDamaged, ClusterUnavailable, LayoutMismatch, PositionLost, TopicRecreated
from streams.model.layout import LANE
from streams.model.operations import LetterCommand
from streams.ports import TP, Ports
from streams.testing.faults import NoFaults

pytestmark = pytest.mark.promise("recreated-topics")


async def has_counted(world: World) -> Workload:
    work = await counter(world, partitions=1)
    await handled(world, work, some(world, work, range(3)))
    return work


async def refused(world: World, match: str, **options: object) -> None:
    lane = world.lane(**options)
    with pytest.raises(TopicRecreated, match=match):
        await lane.ended()
    assert lane.handled == 0


@pytest.mark.promise("recreated-topics")
async def test_letters_of_both_topics_of_a_name_stay_apart(fake: FakeWorld) -> None:
    """Both are of a record with the same key at the same offset."""
    work = await counter(fake, partitions=1)
    work.hooks.before = bug = Broken(("a", 0), ("a", 7))
    for number in (0, 7):
        await fake.post(fake.event(work, "a", number))
        lane = await fake.open()
        await fake.until(lambda lane=lane: lane.lane.counters.dead_letters == 1)
        await fake.settled(work.source)
        if number == 0:
            await lane.stop()
            await fake.clock.advance(1)
            await fake.recreate(work.source)
            await accept(fake.app.layout, fake.cluster, work.source, [0])
    former, latter = await letter_ids(fake)
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, former))
    await fake.until(lambda: lane.lane.counters.dead_letters == 2)
    assert [letter.replays for letter in await letters(fake)] == [1, 0]
    bug.mend()
    again = (operation(fake, LetterCommand.REPLAY, each, operation_id=each) for each in (former, latter))
    await operated(fake, lane, *again)
    await fake.until(lambda: lane.lane.counters.replayed == 2)
    await fake.settled(fake.app.layout.operations)
    assert await letters(fake) == []
    assert await counts(fake) == {"a": 2}
    await lane.stop()
    await check_store(fake)


async def test_a_store_keeps_rows_until_each_changelog_is_accepted(world: World) -> None:
    work = await counter(world, tallied=True, partitions=1)
    await handled(world, work, some(world, work, range(3)))
    logs = {table: world.app.layout.changelog(table) for table in ("counts", "tallies")}
    for changelog in logs.values():
        await world.recreate(changelog)
    for table, changelog in logs.items():
        await refused(world, rf"accept --topic {changelog}`")
        await refused(world, changelog, stores=world.stores())
        store = world.machine.open(0)
        assert len(list(store.scan(table))) == 4, "the last who has them"
        store.close()
        await accept(world.app.layout, world.cluster, changelog, [0])
    await handled(world, work, some(world, work, range(3, 4)))
    assert await counts(world) == await counts(world, "tallies") == dict.fromkeys("abcd", 1)
    await check_store(world)


async def test_accepting_one_topic_says_nothing_of_the_others(fake: FakeWorld) -> None:
    work = await has_counted(fake)
    await fake.recreate(work.source)
    await accept(fake.app.layout, fake.cluster, work.source, [0])
    await fake.recreate(changelog := fake.app.layout.changelog("counts"))
    await refused(fake, changelog, stores=fake.stores())


async def test_a_standby_waits_until_a_new_changelog_is_accepted(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await has_counted(fake)
    standby = Standby(fake.app, 0, Ports(fake.cluster, fake.machine, fake.clock, NoFaults()))
    changelog = fake.app.layout.changelog("counts")
    fake.cluster.recreate_topic(changelog)
    task = fake.spawn(standby.run())
    await fake.clock.advance(5)
    assert standby.records == 0
    await accept(fake.app.layout, fake.cluster, changelog, [0])
    await fake.until(lambda: standby.records > 0)
    standby.stop()
    await fake.until(task.done)
    await handled(fake, work, some(fake, work, range(3, 4)))
    await check_store(fake)


async def test_a_lane_changelog_cut_while_read_is_read_again(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_counted(fake)
    ask, changelog = fake.cluster.end_offsets, TP(fake.app.layout.changelog(LANE), 0)

    async def cut_then(tps: Iterable[TP]) -> dict[TP, int]:
        fake.cluster.truncate(changelog, 1)
        return await ask(tps)

    monkeypatch.setattr(fake.cluster, "end_offsets", cut_then)
    with pytest.raises(ClusterUnavailable, match="cut while it was read"):
        await standings(fake.app.layout, fake.cluster)
    assert await standings(fake.app.layout, fake.cluster)


@pytest.mark.promise("recreated-topics")
async def test_rows_deleted_from_a_changelog_are_not_missed_in_silence(fake: FakeWorld) -> None:
    work = await has_counted(fake)
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    fake.cluster.truncate(changelog, fake.cluster.log(changelog).end - 1)  # all but a marker
    await handled(fake, work, some(fake, work, range(3, 4), "a"))  # this store has them
    lane = fake.lane(stores=fake.stores())
    await fake.until(lambda: isinstance(lane.lane.error, ChangelogDamaged))
    assert f"accept --topic {changelog.topic}`" in str(lane.lane.error)
    await lane.stop()
    standing = (await standings(fake.app.layout, fake.cluster, [changelog.topic]))[0]
    assert standing.problem == "rows were deleted"
    await accept(fake.app.layout, fake.cluster, changelog.topic, [0])
    lane = fake.lane(stores=fake.stores())
    await fake.until(lambda: lane.lane.state == "open")
    await lane.stop()
    assert not (await standings(fake.app.layout, fake.cluster, [changelog.topic]))[0].problem


async def test_no_old_store_goes_with_a_lane_changelog_made_anew(fake: FakeWorld) -> None:
    await has_counted(fake)
    fake.cluster.recreate_topic(fake.app.layout.changelog(LANE))
    fake.cluster.forget_group(fake.name)
    await refused(fake, "the local store means nothing in it")
    await fake._start()
    await refused(fake, "this is another cluster.*Check STEADFAUST_BOOTSTRAP")


async def test_a_lost_lane_changelog_is_made_up_from_the_group(world: World) -> None:
    work = await counter(world, partitions=1)
    events = some(world, work, range(4), "a")
    await handled(world, work, events)
    await world.set_group({TP(work.source, 0): 2})
    with pytest.raises(PositionLost, match="stands at 2, the changelog at 4"):
        await world.lane().ended()
    (accepted,) = await accept(world.app.layout, world.cluster, work.source, [0], At.RECORDED)
    assert accepted.position == 4
    changelog = world.app.layout.changelog(LANE)
    await world.recreate(changelog)
    await refused(world, "created again")
    await accept(world.app.layout, world.cluster, changelog, [0])
    with pytest.raises(PositionLost, match="stands at 4, the changelog at None"):
        await world.lane().ended()
    for source in world.app.sources:
        await accept(world.app.layout, world.cluster, source, [0], At.GROUP)
    more = some(world, work, range(4, 6), "a")
    await handled(world, work, more)
    await check(world, work, events + more)
    await check_store(world)


@pytest.mark.promise("impossible-states")
async def test_messages_deleted_before_the_first_one_was_handled_are_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a partition that never had a message while the lane was open."""
    monkeypatch.setattr(streams.engine.way.commit, "FIRST_COMMIT", 0.1)
    work = await counter(world, partitions=1)
    lane = await world.open()
    source = TP(work.source, 0)
    await world.until_at({source: 0})
    await lane.stop()
    await world.post(*(world.event(work, "a", i) for i in range(4)))
    await world.truncate(source, 3)
    with pytest.raises(PositionLost, match="handled up to 0, but the log now begins at 3: 3 messages"):
        await world.lane().ended()
    (accepted,) = await accept(world.app.layout, world.cluster, work.source, [0])
    assert (accepted.before, accepted.position) == (0, 3)
    await handled(world, work, [])
    assert await counts(world) == {"a": 1}


async def test_first_positions_are_recorded_with_the_first_messages(fake: FakeWorld) -> None:
    work = await counter(fake, settled=True, partitions=3)
    key = next(key for key in "abcdefgh" if fake.app.layout.partition_of(key.encode()) == 1)
    await handled(fake, work, [fake.event(work, key, 1)])
    found = await standings(fake.app.layout, fake.cluster, fake.app.sources)
    assert {each.recorded for each in found if each.partition != 1} == {0}
    assert all(each.recorded == each.group and each.was == each.topic_id for each in found)


async def test_a_topic_that_a_deploy_adds_begins_at_its_beginning(world: World) -> None:
    work = await counter(world, settled=True, partitions=1)
    await handled(world, work, some(world, work, range(3), "a"), topics=[work.source])
    await world.truncate(TP(work.output, 0), 1)
    lane = await world.open()
    await stopped(world, lane, work.source, work.output)
    assert await counts(world, "settled") == {"a": 2}
    assert not any(each.problem for each in await standings(world.app.layout, world.cluster))


@pytest.mark.landing
async def test_accepting_while_the_lane_runs_fences_it(world: World) -> None:
    work = await counter(world, partitions=1)
    lane = await world.open()
    events = some(world, work, range(4), "a")
    await world.post(*events)
    await world.settled(work.source)
    await accept(world.app.layout, world.cluster, work.source, [0], At.BEGIN)
    await world.post(world.event(work, "a", 4))
    await world.until(lambda: lane.lane.fenced == 1 and lane.lane.counters.duplicates == 4)
    await stopped(world, lane, work.source)
    assert await counts(world) == {"a": 5}


async def test_a_position_that_cannot_be_is_refused(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    with pytest.raises(LayoutMismatch, match="start the workers first"):  # the number of lanes is unknown
        await accept(fake.app.layout, fake.cluster, work.source, [0])
    await handled(fake, work, some(fake, work, range(4), "a"))
    with pytest.raises(PositionLost, match="holds 0 to 4, not 9"):
        await accept(fake.app.layout, fake.cluster, work.source, [0], 9)


async def test_a_running_lane_notices_a_topic_that_was_made_anew(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    lane = await fake.open()
    await fake.post(*some(fake, work, range(1)))
    await fake.settled(work.source)
    fake.cluster.recreate_topic(work.source)
    await fake.post(*some(fake, work, range(1, 4)))  # longer than the former one was
    lane.may_fail = True
    await fake.clock.advance(HOUSEKEEPING + 10)
    with pytest.raises(TopicRecreated):
        await lane.ended()


async def test_positions_past_markers_are_committed_in_a_lane_often_woken(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader looks twice a second, which must not put that off for ever."""
    monkeypatch.setattr(streams.engine.way.commit, "FIRST_COMMIT", 1.2)
    await counter(fake, partitions=1)
    lane = await fake.open()
    await fake.until(lambda: lane.lane.commits == 1)
    await lane.stop()
