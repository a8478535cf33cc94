"""A topic that others write is read, and never written: its records go to their keys by a topic of ours."""

from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_desk import Broken, letter_ids, letters, operated, operation, results
from lane_scenes import counter, failing_counter, finished, handled, opened, some, stopped
from lane_worlds import FakeWorld, Post, World

from streams.engine.staging.repartition import ORIGIN, original, with_origin
from streams.model.layout import retry_topic
from streams.model.operations import LetterCommand
from streams.ports import TP, OwnRecord, Record


def misrouted(world: World, posts: list[Post]) -> list[Post]:
    """Each in another partition than that of its key, as another partitioner puts it."""
    partitions = world.app.layout.partitions
    return [post._replace(partition=(post.partition + 1) % partitions) for post in posts]


def own_id(record: Record) -> bytes:
    return dict(record.headers)["ce_id"]


@pytest.mark.promise("external-topics")
@pytest.mark.landing
async def test_misrouted_records_are_handled_and_their_topic_is_not_written(world: World) -> None:
    work = await counter(world, partitions=3)
    events = misrouted(world, some(world, work, range(3)))
    lane = await opened(world, *events)
    await world.until(lambda: lane.handled == len(events))
    await stopped(world, lane, work.source)
    assert len(await world.records(work.source)) == len(events)
    await check(world, work, events)
    await check_store(world)
    assert lane.lane.counters.misrouted == len(events)


@pytest.mark.promise("external-topics")
async def test_records_of_added_partitions_leave_their_topic_as_it_is(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=2)
    await fake.add_partitions(work.source, 5)
    events = some(fake, work, range(3))
    added = [post._replace(partition=2 + number % 3) for number, post in enumerate(events)]
    await handled(fake, work, added)
    ends = await fake.cluster.end_offsets([TP(work.source, number) for number in range(5)])
    assert sum(ends.values()) == len(events)
    assert await counts(fake) == dict.fromkeys("abcd", 3)


@pytest.mark.promise("external-topics")
async def test_retries_of_misrouted_records_keep_the_order_of_keys(world: World) -> None:
    work, failing = await failing_counter(world, {("a", 0): 4}, partitions=2)
    events = misrouted(world, some(world, work, range(3), "a"))
    lane = await opened(world, *events)
    await finished(world, work, lane, events, lambda: len(failing.of("a", 0)) == 5)
    (shown,) = await world.records(retry_topic(work.source, 2))
    (came,) = [record for record in await world.records(work.source) if own_id(record) == b"a-0"]
    said = dict(shown.headers)
    assert (said["retry-source-partition"], said["retry-source-offset"]) == (
        b"%d" % came.partition,
        b"%d" % came.offset,
    )
    assert ORIGIN not in said


@pytest.mark.promise("external-topics")
async def test_a_dead_letter_names_the_place_where_its_record_came(world: World) -> None:
    work = await counter(world, partitions=3)
    work.hooks.before = Broken(("a", 0), ("a", 1))
    posts = some(world, work, range(2), "a")
    lane = await opened(world, posts[0], *misrouted(world, posts[1:]))  # the same offset, in two partitions
    await world.until(lambda: lane.lane.counters.dead_letters == 2)
    await world.settled(work.source)
    sent = {own_id(record): record for record in await world.records(work.source)}
    for letter, post in zip(await dead_letters(world, work.source), posts, strict=True):
        said, came = as_it_came(letter, post), sent[own_id(letter)]
        assert said["dlq-source-topic"] == work.source.encode()
        assert said["dlq-source-partition"] == b"%d" % came.partition
        assert said["dlq-source-offset"] == b"%d" % came.offset == b"0"
        assert said["dlq-original-timestamp"] == b"%d" % came.timestamp
    rows = {own_id(letter.record): letter for letter in await letters(world)}
    assert {rows[b"a-1"].topic, rows[b"a-0"].topic} == {work.source}
    assert (rows[b"a-1"].partition, rows[b"a-1"].offset) == (sent[b"a-1"].partition, 0)
    work.hooks.before.mend()
    for letter_id in await letter_ids(world):
        await operated(world, lane, operation(world, LetterCommand.REPLAY, letter_id))
    await world.until(lambda: lane.lane.counters.replayed == 2)
    await stopped(world, lane, work.source)
    assert await letters(world) == []
    assert {result for _, result in await results(world)} == {"replaying", "succeeded"}
    assert len(await world.records(work.source)) == 2
    await check_store(world)


async def test_a_misrouted_letter_that_no_handler_saw_is_replayed(fake: FakeWorld) -> None:
    """Its schema is not of this application at first."""
    work = await counter(fake, partitions=2)
    (post,) = misrouted(fake, some(fake, work, range(1), "a"))
    lane = await opened(fake, post._replace(value=b"?"))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    (letter_id,) = await letter_ids(fake)
    (letter,) = await letters(fake)
    assert (letter.topic, letter.partition, letter.offset) == (work.source, post.partition, 0)
    edit = operation(fake, LetterCommand.DISCARD, letter_id)
    await operated(fake, lane, edit)
    assert [each.state for each in await letters(fake)] == ["discarded"]
    await stopped(fake, lane, work.source)
    await check_store(fake)


def as_it_came(letter: Any, post: Post) -> dict[str, bytes]:
    """The headers that a letter has been given; all else is the post's."""
    assert (letter.key, letter.value) == (post.key, post.value)
    assert list(letter.headers[: len(post.headers)]) == post.headers
    return dict(letter.headers[len(post.headers) :])


async def test_a_strangers_record_in_our_topic_is_a_dead_letter(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=2)
    (post,) = some(fake, work, range(1), "a")
    ours = fake.app.layout.repartition(work.source)
    lane = await opened(fake, post._replace(topic=ours))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await fake.settled(ours)
    await lane.stop()
    (letter,) = await dead_letters(fake, work.source)
    assert "only lanes write this topic" in dict(letter.headers)["dlq-error-message"].decode()


@pytest.mark.parametrize("topic", ["t", "with spaces 1 2"])
def test_a_record_that_was_sent_on_is_what_it_was(topic: str) -> None:
    headers: list[tuple[str, Any]] = [("ce_id", b"1"), ("more", None), (ORIGIN, b"0 0 0 other")]
    came = OwnRecord(topic, 7, 12, -1, b"k", b"v", headers)
    sent_on = OwnRecord("ours", 1, 0, 99, came.key, came.value, with_origin(came))
    assert original(sent_on, topic) == came
