"""What becomes of a topic while a lane reads it: made again, deleted, with more partitions."""

from typing import Any

import pytest
from lane_checker import check, check_store, counts
from lane_desk import letter_ids, letters, operated, operation
from lane_scenes import counter, handled, opened, some, stopped
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs

from streams.engine.life.cluster_checks import ASK_INTERVAL
from streams.engine.life.positions.declared import differences
from streams.engine.life.positions.review import At, accept, standings
from streams.errors import PositionLost, TopicGone, TopicMismatch, TopicRecreated
from streams.host.topics import ensure_topics
from streams.kafka.topics import KafkaTopics
from streams.model.layout import LANE, Layout
from streams.model.operations import LetterCommand
from streams.ports import TP, TopicSpec

pytestmark = pytest.mark.promise("recreated-topics")


async def handled_five(world: World, **options: Any) -> tuple[Any, Running]:
    work = await counter(world, partitions=1, **options)
    lane = await opened(world, *some(world, work, range(5), "a"))
    await world.until(lambda: lane.handled == 5)
    await world.settled(work.source)
    return work, lane


@pytest.mark.promise("recreated-topics")
@pytest.mark.landing
async def test_nothing_of_a_topic_made_again_is_passed_over(world: World) -> None:
    work, lane = await handled_five(world)
    lane.may_fail = True
    asked = world.clock.now()
    await world.recreate(work.source)
    new = [world.event(work, "a", 10 + i) for i in range(12)]  # longer than the former one was read
    await world.post(*new)
    with pytest.raises(
        TopicRecreated, match=rf"{work.source}\[0\] is handled up to 5, all of it of the former topic"
    ):
        await lane.ended()
    assert lane.handled == 5
    if world.is_fake:
        assert world.clock.now() - asked < 3
    (accepted,) = await accept(world.app.layout, world.cluster, work.source, [0])
    assert (accepted.before, accepted.position) == (5, 0)
    await handled(world, work, [])
    assert await counts(world) == {"a": 5 + len(new)}


async def test_brokers_that_know_no_ids_tell_within_seconds(fake: FakeWorld) -> None:
    work, lane = await handled_five(fake)
    await lane.stop()
    fake.cluster.knows_ids = False  # before Kafka 3.1
    lane = await fake.open()
    lane.may_fail = True
    await fake.recreate(work.source)
    await fake.post(*[fake.event(work, "a", 10 + i) for i in range(12)])
    asked = fake.clock.now()
    with pytest.raises(TopicRecreated, match=r"up to 1[0-9].*some of it may be of the new"):
        await lane.ended()
    assert fake.clock.now() - asked < 2 * ASK_INTERVAL + 1


@pytest.mark.parametrize("what", ["changelog", "source"])
async def test_a_gone_topic_is_said_until_it_is_another(fake: FakeWorld, what: str) -> None:
    work = await counter(fake, partitions=1, settled=True)
    lane = await opened(fake, *some(fake, work, range(2), "a"))
    await fake.settled(work.source)
    gone = work.source if what == "source" else fake.app.layout.changelog("settled")
    standing = lane.lane.measures.topics
    asked = fake.clock.now()
    with capture_logs() as logs:
        await fake.delete(gone)
        await fake.until(lambda: gone in standing.gone)
        assert fake.clock.now() - asked < ASK_INTERVAL + 1
        await fake.clock.advance(20)
    said = [line for line in logs if line["event"] == "topic_gone"]
    assert [(line["topic"], "none opens without it" in line["action"]) for line in said] == [(gone, True)]
    assert lane.lane.state == "open"
    lane.may_fail = True
    fake.cluster.create_topic(gone, 1)
    with pytest.raises(TopicRecreated):
        await lane.ended()


@pytest.mark.parametrize("what", ["output", "changelog"])
async def test_a_lane_waits_for_a_topic_that_it_writes(fake: FakeWorld, what: str) -> None:
    work, lane = await handled_five(fake)
    gone = work.output if what == "output" else fake.app.layout.changelog("counts")
    with capture_logs() as logs:
        await fake.delete(gone)
        await fake.post(*some(fake, work, range(5, 6), "a"))
        await fake.until(lambda: lane.lane.trouble or isinstance(lane.lane.error, TopicGone))
        await fake.clock.advance(60)
        assert gone in str(lane.lane.error)
        assert {"lane_error", "lane_quarantined"}.isdisjoint(line["event"] for line in logs)
        fake.cluster.create_topic(gone, 1)
    if what == "output":
        await stopped(fake, lane, work.source)
        assert await counts(fake) == {"a": 6}
    else:
        lane.may_fail = True
        with pytest.raises(TopicRecreated):
            await lane.ended()


async def test_a_lane_says_at_once_which_topic_it_lacks(world: World) -> None:
    work, lane = await handled_five(world)
    await lane.stop()
    await world.delete(work.source)
    asked = world.clock.now()
    lane = world.lane()
    await world.until(lambda: lane.lane.error is not None)
    assert isinstance(lane.lane.error, TopicGone)
    assert world.clock.now() - asked < 5
    assert work.source in str(lane.lane.error)
    assert list(lane.lane.measures.topics.gone) == [work.source]


def astray(world: World, posts: list[Post], partition: int) -> list[Post]:
    return [post._replace(partition=partition) for post in posts]


@pytest.mark.promise("added-partitions")
@pytest.mark.landing
async def test_records_of_an_added_partition_reach_their_keys(world: World) -> None:
    work = await counter(world, partitions=2, lanes=2)
    lanes = [await world.open(number) for number in (0, 1)]
    first = some(world, work, range(3))
    await world.post(*first)
    await world.settled(work.source)
    with capture_logs() as logs:
        await world.add_partitions(work.source, 5)
        late = some(world, work, range(3, 6))
        for number in (2, 3, 4):
            await world.post(*astray(world, late[number - 2 :: 3], number))
        await world.until(lambda: sum(lane.lane.counters.misrouted for lane in lanes) == len(late))
        await world.settled(work.source)
    said = [line for line in logs if line["event"] == "partitions_added"]
    assert {(line["topic"], line["partitions"]) for line in said} == {(work.source, 5)}
    for lane in lanes:
        await lane.stop()
    await check(world, work, first + late)
    for number in (0, 1):
        await check_store(world, number)


@pytest.mark.promise("added-partitions")
async def test_added_partitions_are_read_on_after_a_restart(world: World) -> None:
    work = await counter(world, partitions=2)
    await handled(world, work, some(world, work, range(2)))
    await world.add_partitions(work.source, 3)
    late = some(world, work, range(2, 5))
    await world.post(*astray(world, late[:6], 2))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.misrouted == 6)
    await world.until_at({TP(work.source, 2): 6})
    await lane.stop()
    await world.post(*astray(world, late[6:], 2))
    lane = await world.open(stores=world.stores())
    await world.until(lambda: lane.lane.counters.misrouted == 6)
    await stopped(world, lane, work.source)
    await check(world, work, some(world, work, range(5)))
    found = {(each.topic, each.partition): each for each in await standings(world.app.layout, world.cluster)}
    assert found[work.source, 2].recorded == found[work.source, 2].group == 12
    assert not any(each.problem for each in found.values())


async def test_added_partitions_go_on_from_the_group_without_lane_changelog(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    await fake.add_partitions(work.source, 3)
    await handled(fake, work, astray(fake, some(fake, work, range(2), "a"), 1))
    changelog = fake.app.layout.changelog(LANE)
    fake.cluster.recreate_topic(changelog)
    await accept(fake.app.layout, fake.cluster, changelog, [0])
    for source in fake.app.sources:
        accepted = await accept(fake.app.layout, fake.cluster, source, [0], At.GROUP)
        if source == work.source:
            assert [(each.partition, each.position) for each in accepted] == [(0, 0), (1, 2), (2, 0)]
    await handled(fake, work, astray(fake, some(fake, work, range(2, 4), "a"), 2))
    assert await counts(fake) == {"a": 4}
    fake.cluster.delete_topic(work.source)
    fake.cluster.create_topic(work.source, 1)
    await accept(fake.app.layout, fake.cluster, work.source, [0])
    await handled(fake, work, some(fake, work, range(4, 6), "a"))
    await fake.add_partitions(work.source, 2)  # the others are forgotten
    await handled(fake, work, astray(fake, some(fake, work, range(6, 8), "a"), 1))
    assert await counts(fake) == {"a": 8}
    await fake.post(*astray(fake, some(fake, work, range(8, 10), "a"), 1))
    fake.cluster.truncate(TP(work.source, 1), 3)
    with pytest.raises(PositionLost, match=r"partition 1: handled up to 2, but the log now begins at 3"):
        await fake.lane().ended()
    accepted = await accept(fake.app.layout, fake.cluster, work.source, [0])
    assert [(each.partition, each.before, each.position) for each in accepted][1:] == [(1, 2, 3)]
    await handled(fake, work, [])
    assert await counts(fake) == {"a": 9}


async def test_a_changelog_deleted_during_the_opening_keeps_the_lane_shut(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await counter(fake, partitions=1)
    gone, real = fake.app.layout.changelog("counts"), fake.cluster.identity
    asked: list[Any] = []

    async def identity(topics: Any) -> Any:
        asked.append(topics)
        if len(asked) == 2:  # the first is of recovery
            fake.cluster.delete_topic(gone)
        return await real(topics)

    monkeypatch.setattr(fake.cluster, "identity", identity)
    lane = fake.lane()
    await fake.until(lambda: lane.lane.error is not None)
    assert isinstance(lane.lane.error, TopicGone)
    assert gone in str(lane.lane.error)
    await lane.stop()


async def test_hostile_records_of_an_added_partition_stop_no_lane(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=2)
    await fake.add_partitions(work.source, 3)
    lane = await fake.open()
    (good,) = astray(fake, some(fake, work, range(1), "a"), 2)
    bad = [good._replace(headers=[]), good._replace(value=None), good._replace(key=None)]
    await fake.post(*bad)
    place = TP(work.source, 2)
    await fake.post(good, good)
    await fake.spoil(place, 3)
    await fake.until(lambda: lane.handled == 1)
    await stopped(fake, lane, work.source)
    said = [dict(letter.headers) for letter in await fake.records(f"{work.source}.dlq")]
    assert len(said) == len(await letters(fake)) == 4
    assert [each["dlq-source-partition"] for each in said] == [b"2"] * 4  # three of them were sent on
    await check_store(fake)


async def test_letters_of_added_partitions_have_rows_of_their_own(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    await fake.add_partitions(work.source, 3)
    (good,) = some(fake, work, range(1), "a")
    large = b"x" * 2 * fake.app.lane_options.max_message_bytes  # as if it came compressed
    lane = await opened(fake, good._replace(value=b"?"))
    await fake.post(*astray(fake, [good._replace(value=large)], 1), *astray(fake, [good], 2))
    await fake.until_at({TP(work.source, number): 1 for number in (1, 2)})
    await fake.settled(work.source)
    assert [(letter.partition, letter.offset) for letter in await letters(fake)] == [(0, 0), (1, 0)]
    first, second = await letter_ids(fake)
    await operated(fake, lane, operation(fake, LetterCommand.DISCARD, second))
    assert [letter.state for letter in await letters(fake)] == ["dead", "discarded"]
    assert await letter_ids(fake) == [first, second]
    await fake.until(lambda: lane.handled == 1)
    await stopped(fake, lane, work.source)
    await check_store(fake)


@pytest.mark.parametrize("kind", ["changelog", "operations", "own events"])
async def test_partitions_of_topics_of_our_own_are_an_error(fake: FakeWorld, kind: str) -> None:
    work = await counter(fake, partitions=2, settled=True)
    layout = fake.app.layout
    of_lanes = {"changelog": layout.changelog("counts"), "operations": layout.operations}
    topic = of_lanes.get(kind, work.output)
    lane = await fake.open()
    with capture_logs() as logs:
        await fake.add_partitions(topic, 3)
        await fake.until(lambda: topic in lane.lane.measures.topics.partitions)
    assert [line["topic"] for line in logs if line["event"] == "partitions_differ"] == [topic]
    assert lane.lane.reopened == 0
    await lane.stop()


def test_more_partitions_are_fine_of_topics_from_outside_alone() -> None:
    assert differences(TopicSpec("t", 3, 1, {}), partitions=4, replication=1, config={})
    assert not differences(TopicSpec("t", 3, 1, {}, outside=True), partitions=4, replication=1, config={})
    assert differences(TopicSpec("t", 3, 1, {}, outside=True), partitions=2, replication=1, config={})


@pytest.mark.promise("old-timestamps")
async def test_what_a_client_stamps_with_an_old_time_is_kept(world: World) -> None:
    """Retention deletes by stamps: these are the broker's, whatever clock a client has."""
    if world.is_fake:
        pytest.skip("the fake deletes nothing by its stamp")
    work = await counter(world, partitions=1)
    began = int(world.clock.now() * 1000) - 1000
    (post,) = some(world, work, range(1), "a")
    for at in (1, int(world.clock.now())):  # of 1970, and in seconds
        await world._producer.send_and_wait(
            post.topic, post.value, post.key, 0, timestamp_ms=at, headers=post.headers
        )
    assert all(record.timestamp >= began for record in await world.records(work.source))
    async with KafkaTopics(world.bootstrap) as topics:
        (found,) = (await topics.describe([work.source])).values()
    assert found.config["message.timestamp.type"] == "LogAppendTime"


async def test_a_log_that_begins_late_is_told_with_numbers(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    await fake.post(*some(fake, work, range(3), "a"))
    await fake.truncate(TP(work.source, 0), 2)
    lane = await fake.open()
    assert lane.lane.measures.topics.late == {TP(work.source, 0): 2}
    await stopped(fake, lane, work.source)
    lane = await fake.open()
    assert lane.lane.measures.topics.late == {}


@pytest.mark.promise("added-partitions")
async def test_a_worker_starts_beside_added_partitions(world: World) -> None:
    if world.is_fake:
        pytest.skip("the fake has no topics to describe")
    work = await counter(world, partitions=1)
    app, made = world.app, world.app.layout
    app.layout = Layout(f"{world.name}-first", 1, 1)
    await world.add_partitions(work.source, 2)
    with pytest.raises(TopicMismatch, match=r"has 2 partitions, and the application is to start with 1"):
        await ensure_topics(app, world.bootstrap, replication=1)
    async with KafkaTopics(world.bootstrap) as topics:
        assert not await topics.describe([app.layout.changelog(LANE), app.layout.operations])
    app.layout = made
    await ensure_topics(app, world.bootstrap, replication=1)
    await world.add_partitions(app.layout.operations, 2)
    with pytest.raises(TopicMismatch, match="operations has 2 partitions"):
        await ensure_topics(app, world.bootstrap, replication=1)
