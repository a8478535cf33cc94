"""What a lane sends to itself is handled in the transaction that writes it, and not again when it is read."""

import json
from typing import Any

import pytest
from lane_checker import latest
from lane_relays import Relay, relay
from lane_scenes import LANDING_AT_SENT, handled, opened, some, stopped
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs

from streams.engine.life.positions.producers import FORMER
from streams.engine.staging.keys import PRODUCERS
from streams.engine.way.loopback import MOST
from streams.errors import PermanentError, TransientError
from streams.model.envelope import ID, LOOPBACK
from streams.model.layout import LANE
from streams.model.policy.retry import RetryPolicy
from streams.model.row_keys import split_row_key
from streams.ports import TP

KEYS = "abc"


async def relayed(world: World, *, later: float = 0.0, astray: bool = False, **options: Any) -> Relay:
    work = relay(world.name, later=later, astray=astray)
    await world.start(work, **options)
    return work


async def seen(world: World, table: str) -> dict[str, list[int]]:
    rows = (await latest(world, table)).items()
    return {split_row_key(row)[0].decode(): json.loads(value[8:])["numbers"] for (_, row), value in rows}


async def marked(world: World, topic: str) -> list[bool]:
    return [dict(record.headers).get(LOOPBACK) is not None for record in await world.records(topic)]


async def finish(world: World, work: Relay, numbers: range) -> None:
    """All is handled by a lane, each once and in order, in each table."""
    lane = await world.open()
    # By turns: each is written while the one before it is read.
    for topic in (work.source, work.middle, work.end):
        await world.settled(topic)
    await lane.stop()
    for table in ("begun", "halves", "audits", "ended"):
        assert await seen(world, table) == {key: list(numbers) for key in KEYS}, table


@pytest.mark.landing
async def test_a_lane_handles_what_it_sends_itself_at_once(world: World) -> None:
    work = await relayed(world)
    lane = await opened(world, *some(world, work, range(1), KEYS))
    await world.until(lambda: lane.handled == 9)
    assert lane.lane.counters.looped == 6
    await world.settled(work.source, work.middle, work.end)
    assert lane.handled == 9
    await lane.stop()
    assert await marked(world, work.middle) == await marked(world, work.end) == [True] * 3
    await finish(world, work, range(1))


@pytest.mark.promise("loopback", "six points")
@pytest.mark.parametrize("point", LANDING_AT_SENT)
async def test_each_is_handled_once_when_the_lane_is_killed(world: World, point: str) -> None:
    work = await relayed(world, max_batch=4)
    await world.post(*some(world, work, range(4), KEYS))
    world.faults.kill_at(point, nth=2)
    killed = world.lane()
    await killed.killed()
    assert world.faults.pending == []
    assert killed.lane.counters.looped > 0
    await world.post(*some(world, work, range(4, 6), KEYS))
    await finish(world, work, range(6))


@pytest.mark.promise("loopback")
async def test_loopback_may_be_switched_on_and_off(world: World) -> None:
    work = await relayed(world, max_batch=4)
    for begin, loopback in enumerate((True, False, True, False)):
        object.__setattr__(world.app.lane_options, "loopback", loopback)
        await world.post(*some(world, work, range(begin * 2, begin * 2 + 2), KEYS))
        world.faults.kill_at("committed", nth=world.faults.reached["committed"] + 1)
        running = world.lane()
        await running.killed()
        assert (running.lane.counters.looped > 0) == loopback
    await finish(world, work, range(8))
    assert {True, False} == set(await marked(world, work.middle))


@pytest.mark.promise("loopback")
async def test_a_deploy_without_loopback_leaves_alone_what_was_handled(world: World) -> None:
    work = await relayed(world, max_batch=4)
    await world.post(*some(world, work, range(3), KEYS))
    world.faults.kill_at("committed", nth=2)
    await world.lane().killed()
    assert True in await marked(world, work.middle)
    world.app = world.cut_into(relay(world.name, same_key=False), lanes=1)
    assert not world.app.looped
    await finish(world, work, range(3))


@pytest.mark.promise("loopback")
async def test_a_looped_message_that_fails_is_tried_as_any_other(fake: FakeWorld) -> None:
    work = await relayed(fake, partitions=1, retry=RetryPolicy(immediate=0, delays=(5.0,)))

    def fail(number: int) -> None:
        if number == 1 and work.calls["audit"] < 3 + 3:
            raise TransientError("not now")

    work.before["audit"] = fail
    await fake.post(*some(fake, work, range(3), KEYS))
    await finish(fake, work, range(3))
    assert not all(await marked(fake, work.middle))


async def test_a_looped_dead_letter_says_its_place_and_holds_nothing(fake: FakeWorld) -> None:
    """A looped message that nobody can read holds nothing up either."""
    work = await relayed(fake, partitions=1)

    def fail(number: int) -> None:
        if number == 1:
            raise PermanentError("never")

    work.before["finish"] = fail
    lane = await opened(fake, *(fake.event(work, "a", i) for i in range(3)))
    await fake.settled(work.source, work.middle, work.end)
    looped = lane.lane.counters.looped
    middle, *_ = await fake.records(work.middle)
    headers = [(name, b"another" if name == ID else value) for name, value in middle.headers[:-1]]
    await fake.post(fake.raw(work.middle, "a", b"\xff", headers))
    await fake.until(lambda: lane.lane.counters.dead_letters == 2)
    await fake.post(fake.event(work, "a", 3))
    await stopped(fake, lane, work.source, work.middle, work.end)
    assert lane.lane.counters.looped == looped + 2
    (letter,) = await fake.records(f"{work.end}.dlq")
    at = int(dict(letter.headers)["dlq-source-offset"])
    places = {record.offset: record for record in await fake.records(work.end)}
    assert b'"i":1' in (places[at].value or b"").replace(b" ", b"")
    assert await seen(fake, "ended") == {"a": [0, 2, 3]}


@pytest.mark.promise("loopback")
async def test_nothing_overtakes_a_message_of_its_key_that_waits(fake: FakeWorld) -> None:
    """Number 1 fails at the end until 2 and 3 have been sent; those may not come before it."""
    work = await relayed(fake, partitions=1, retry=RetryPolicy(immediate=0, delays=(5.0, 5.0)))
    failed: list[int] = []

    def fail(number: int) -> None:
        if number == 1 and len(failed) < 2 * len(KEYS):
            failed.append(number)
            raise TransientError("not now")

    work.before["finish"] = fail
    lane = await opened(fake, *some(fake, work, range(2), KEYS))
    await fake.until(lambda: len(failed) >= 2)
    await fake.post(*some(fake, work, range(2, 4), KEYS))
    await fake.until(lambda: work.calls["finish"] == 4 * len(KEYS) + len(failed))
    await lane.stop()
    await finish(fake, work, range(4))


async def test_nothing_overtakes_what_a_timer_has_sent(fake: FakeWorld) -> None:
    work = await relayed(fake, later=1.0, partitions=1)
    lane = await opened(fake, *some(fake, work, range(1), KEYS))
    await fake.until(lambda: lane.lane.counters.timers == len(KEYS))
    await fake.post(*some(fake, work, range(1, 3), KEYS))
    await stopped(fake, lane, work.source, work.middle, work.end)
    for table in ("halves", "audits", "ended"):
        assert await seen(fake, table) == {key: [0, 1, 2] for key in KEYS}


@pytest.mark.promise("loopback")
async def test_nothing_overtakes_what_was_written_before_the_lane_opened(fake: FakeWorld) -> None:
    """It lies in the topic, unread, when the lane has more to send."""
    work = await relayed(fake, partitions=1, loopback=False, max_batch=3)
    await fake.post(*some(fake, work, range(4), KEYS))
    fake.faults.kill_at("committed", nth=1)
    await fake.lane().killed()
    assert len(await fake.records(work.middle)) == 3
    object.__setattr__(fake.app.lane_options, "loopback", True)
    await finish(fake, work, range(4))


async def test_a_message_that_never_ends_gives_others_their_turn(fake: FakeWorld) -> None:
    work = await relayed(fake, partitions=1)
    lane = await opened(fake, fake.event(work, "a", -100), fake.event(work, "b", 0))
    await fake.until(lambda: work.calls["finish"] == 2)
    await stopped(fake, lane, work.source, work.middle, work.end)
    assert await seen(fake, "halves") == {"a": list(range(-100, 1)), "b": [0]}
    marks = await marked(fake, work.middle)
    assert marks.count(False) == len(marks) // (MOST + 1)


def foreign(world: World, work: Relay, topic: str, number: int) -> Post:
    """A record of somebody else."""
    event = world.event(work, "a", number)
    own = ("schema-fingerprint", world.app.message_codecs[topic].fingerprint)
    return event._replace(topic=topic, headers=[*(each for each in event.headers if each[0] != own[0]), own])


async def forged(world: World, work: Relay, topic: str, number: int, partition: int | None = None) -> None:
    """A record of somebody else says that this application has handled it."""
    record = foreign(world, work, topic, number)
    home = record.partition if partition is None else partition
    mark = (LOOPBACK, world.name.encode())
    await world.post(record._replace(partition=home, headers=[*record.headers, mark]))


@pytest.mark.promise("loopback")
@pytest.mark.landing
@pytest.mark.parametrize("loopback", [True, False])
async def test_a_forged_mark_is_a_header_as_any_other(world: World, loopback: bool) -> None:
    work = await relayed(world, loopback=loopback)
    await forged(world, work, work.middle, 1)  # before the lane has ever been open
    lane = await world.open()
    await world.until(lambda: work.calls["finish"] == 1)
    await forged(world, work, work.middle, 2)
    await forged(world, work, work.source, 3)
    await forged(world, work, work.end, 4)
    home = world.app.layout.partition_of(b"a")
    await world.until(lambda: work.calls["finish"] == 4)
    await forged(world, work, work.source, 5, partition=1 - home)
    await world.until(lambda: work.calls["finish"] == 5)
    await stopped(world, lane, work.source, work.middle, work.end)
    assert await seen(world, "begun") == {"a": [3, 5]}
    assert sorted((await seen(world, "halves"))["a"]) == [1, 2, 3, 5]
    assert sorted((await seen(world, "ended"))["a"]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("others", [[], [("ce_subject", b"a")]])
@pytest.mark.parametrize("marks", [1, 2])
async def test_a_forged_mark_sent_on_hides_nothing(fake: FakeWorld, others: list[Any], marks: int) -> None:
    work = await relayed(fake, partitions=1)
    await fake.add_partitions(work.source, 2)
    headers = [*others, *[(LOOPBACK, fake.name.encode())] * marks]
    lane = await opened(fake, fake.raw(work.source, "a", b"?", headers, 1))
    await fake.until_at({TP(work.source, 1): 1})  # sent on
    await stopped(fake, lane, work.source)
    assert lane.lane.counters.misrouted == 1
    (letter,) = await fake.records(f"{work.source}.dlq")
    assert (letter.key, letter.value) == (b"a", b"?")


@pytest.mark.promise("loopback")
async def test_a_copy_of_a_looped_record_is_handled(fake: FakeWorld) -> None:
    work = await relayed(fake, partitions=1)
    lane = await opened(fake, fake.event(work, "a", 0))
    await fake.settled(work.source, work.middle, work.end)
    (middle,) = await fake.records(work.middle)
    assert await marked(fake, work.middle) == [True]
    await fake.post(fake.raw(work.middle, "a", middle.value, list(middle.headers)))
    await stopped(fake, lane, work.source, work.middle, work.end)
    assert await seen(fake, "halves") == {"a": [0, 0]}


@pytest.mark.promise("loopback")
async def test_order_holds_once_another_writer_was_seen(fake: FakeWorld) -> None:
    """From then on the lane reads back what it sends there: all is handled in the order of the log."""
    work = await relayed(fake, partitions=1)
    lane = await opened(fake, fake.event(work, "a", 0))
    await fake.until(lambda: lane.lane.counters.looped == 2)
    await fake.settled(work.source, work.middle, work.end)
    with capture_logs() as logs:
        await fake.post(foreign(fake, work, work.middle, -1))
        await fake.settled(work.source, work.middle, work.end)
        before = len(await marked(fake, work.middle))
        for number in range(1, 20):
            other = foreign(fake, work, work.middle, -1 - number)
            await fake.post(fake.event(work, "a", number), other)
        await stopped(fake, lane, work.source, work.middle, work.end)
    (said,) = [line for line in logs if line["event"] == "foreign_writer"]
    assert (said["topic"], said["partition"]) == (work.middle, 0)
    assert not any((await marked(fake, work.middle))[before:]), "nothing of that topic is looped any more"
    numbers = [json.loads(record.value or b"")["i"] for record in await fake.records(work.middle)]
    assert await seen(fake, "halves") == {"a": numbers}


@pytest.mark.promise("loopback")
@pytest.mark.parametrize("copies", [2, 3])
async def test_nothing_overtakes_a_copy_with_the_same_id(fake: FakeWorld, copies: int) -> None:
    """Each is read before the first is handled, whose handler sends to the same topic."""
    work = await relayed(fake, partitions=1)
    lane = await opened(fake, fake.event(work, "b", 0))
    await fake.until(lambda: lane.lane.counters.looped == 2)
    await fake.settled(work.source, work.middle, work.end)
    await fake.post(*[foreign(fake, work, work.middle, -1)] * copies)
    await stopped(fake, lane, work.source, work.middle, work.end)
    records = [record for record in await fake.records(work.middle) if record.key == b"a"]
    numbers = [json.loads(record.value or b"")["i"] for record in records]
    assert numbers == [-1] * copies + [0] * copies
    assert await seen(fake, "halves") == {"a": numbers, "b": [0]}


@pytest.mark.promise("loopback")
async def test_marks_of_used_up_and_former_producers_count(fake: FakeWorld) -> None:
    """The producer id changes while the lane is open, with a deploy of another cut, and after a long rest."""
    work = await relayed(fake, max_batch=4)
    for begin in range(4):
        await fake.post(*some(fake, work, range(begin * 2, begin * 2 + 2), KEYS))
        fake.faults.kill_at("committed", nth=fake.faults.reached["committed"] + 2)
        await fake.lane().killed()
        (name,) = [name for name in fake.cluster._producers if "lane-0-of-1" in name]
        fake.cluster.use_up_epochs(name)
    lane = await opened(fake, *some(fake, work, range(8, 9), KEYS))
    await fake.settled(work.source)
    fake.cluster.use_up_epochs(name)
    await fake.post(*some(fake, work, range(9, 10), KEYS))
    await fake.settled(work.source)
    await fake.post(*some(fake, work, range(10, 11), KEYS))
    await fake.settled(work.source, work.middle, work.end)
    await lane.stop()
    assert lane.lane.counters.looped > 0
    await finish(fake, work, range(11))


async def left_by_a_former_version(world: FakeWorld) -> Relay:
    """A version that recorded no producers was killed with looped messages unread."""
    work = await relayed(world, max_batch=4)
    await world.post(*some(world, work, range(4), KEYS))
    world.faults.kill_at("committed", nth=2)
    await world.lane().killed()
    changelog = world.app.layout.changelog(LANE)
    for partition in range(world.app.layout.partitions):
        world.cluster.produce(TP(changelog, partition), PRODUCERS, None)
    return work


@pytest.mark.parametrize("kills", [0, 1])
async def test_marks_of_a_version_without_recorded_producers_count(fake: FakeWorld, kills: int) -> None:
    async def former() -> list[bytes]:
        rows = await latest(fake, LANE)
        return [value for (_, key), value in rows.items() if key == PRODUCERS + FORMER]

    work = await left_by_a_former_version(fake)
    (name,) = [name for name in fake.cluster._producers if "lane-0-of-1" in name]
    for _ in range(kills):
        fake.cluster.use_up_epochs(name)
        fake.faults.kill_at("committed", nth=fake.faults.reached["committed"] + 1)
        await fake.lane().killed()
    fake.cluster.use_up_epochs(name)
    await finish(fake, work, range(4))
    assert bool(await former()) is (kills == 0)
    await fake.post(*some(fake, work, range(4, 5), KEYS))
    await finish(fake, work, range(5))
    assert await former() == [], "nothing is left of former marks once read"


async def test_such_marks_count_under_another_number_of_lanes(fake: FakeWorld) -> None:
    work = await left_by_a_former_version(fake)
    fake.app = fake.cut_into(work, lanes=2)
    other = await fake.open(1)
    await finish(fake, work, range(4))
    await other.stop()


@pytest.mark.parametrize("later", [0.0, 1.0], ids=["at once", "by a timer"])
async def test_a_message_that_leaves_its_declared_key_is_not_sent(fake: FakeWorld, later: float) -> None:
    once = RetryPolicy(immediate=0, delays=())
    work = await relayed(fake, later=later, astray=True, partitions=1, retry=once)
    await handled(fake, work, [fake.event(work, "a", 0)])
    (letter,) = await fake.records(f"{work.source}.dlq")
    assert b"SAME_KEY" in dict(letter.headers)["dlq-error-message"]
    assert await fake.records(work.middle) == []


async def test_positions_follow_when_nothing_more_comes(fake: FakeWorld) -> None:
    work = await relayed(fake, partitions=1)
    lane = await opened(fake, fake.event(work, "a", 0))
    await fake.settled(work.source, work.middle, work.end)
    await fake.passes(60.0, real=0.0)  # the ends of changelogs are committed once more, when they are known
    commits = lane.lane.commits
    await fake.passes(60.0, real=0.0)
    assert lane.lane.commits == commits
