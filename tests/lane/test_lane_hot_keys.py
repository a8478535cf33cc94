"""Many messages of one key behind one that fails: all of them wait, it is said, and others go on."""

from lane_checker import counts, dead_letters
from lane_failing import Failing, nothing_waits, started
from lane_scenes import stopped
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, Running
from structlog.testing import capture_logs

from streams.errors import TransientError
from streams.policy.retry import RetryPolicy
from streams.retry.long_queues import longest
from streams.web.overview.health import long_queues

#: For good after 12 s.
TWELVE = RetryPolicy(immediate=0, delays=(2.0, 4.0, 6.0))


def hot(world: FakeWorld, work: Workload, number: int) -> list[Post]:
    return [world.event(work, "hot", i) for i in range(number)]


def waiting(lane: Running) -> int:
    return sum(each.queue.length for each in longest(lane.lane.gates.values()))


async def test_thousands_behind_a_failing_message_of_their_key_are_handled(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=TWELVE)
    work.hooks.before = Failing(fake, {("hot", 99): 10}, TransientError("busy"))
    await fake.post(*hot(fake, work, 5000), fake.event(work, "other", 0))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: waiting(lane) > 4800)
        assert ("other", 0) in work.hooks.calls
        (said,) = long_queues(lane.lane.gates.values(), fake.clock.now())
        await fake.until(lambda: ("hot", 4999) in work.hooks.calls)
        await stopped(fake, lane, work.source)
    assert "'hot'" in said
    assert [each["event"] for each in logs].count("queue_long") == 1
    assert len(await dead_letters(fake, work.source)) == 1
    assert await counts(fake) == {"hot": 4999, "other": 1}
    await nothing_waits(fake)


async def test_a_half_full_queue_holds_its_partition_back(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=TWELVE, max_waiting=2000, hold_back=60.0, partitions=2)
    work.hooks.before = Failing(fake, {("hot", 0): 10}, TransientError("busy"))
    home = fake.app.layout.partition_of(b"hot")
    away = next(key for key in "abcdefgh" if fake.app.layout.partition_of(key.encode()) != home)
    await fake.post(*hot(fake, work, 5000))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: any(each["event"] == "reading_held_back" for each in logs))
        intake = lane.lane.measures.intake
        await fake.until(lambda: not lane.lane.backlog)
        assert intake.lag == intake.not_taken.total() == 5000 - intake.taken_by_topic.total() > 0
        await fake.post(*hot(fake, work, 5002)[5000:])
        await fake.until(lambda: intake.lag == 5002 - intake.taken_by_topic.total() > 0)
        await fake.post(fake.event(work, away, 0))
        await fake.until(lambda: (away, 0) in work.hooks.calls)
        assert lane.lane.counters.dead_letters == 0
        await fake.until(lambda: ("hot", 5001) in work.hooks.calls)
        await stopped(fake, lane, work.source)
    assert len(await dead_letters(fake, work.source)) == 1
    assert await counts(fake) == {"hot": 5001, away: 1}
    await nothing_waits(fake)


async def test_a_clock_set_forward_reads_nothing_on(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=TWELVE, max_waiting=2000, hold_back=900.0, partitions=1)
    work.hooks.before = Failing(fake, {("hot", 0): 3}, TransientError("busy"))
    await fake.post(*hot(fake, work, 5000))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: any(each["event"] == "reading_held_back" for each in logs))
        fake.clock.set(fake.clock.now() + 3600)
        await fake.until(lambda: ("hot", 4999) in work.hooks.calls)
        await stopped(fake, lane, work.source)
    assert await counts(fake) == {"hot": 5000}
    await nothing_waits(fake)


async def test_a_partition_is_held_back_for_a_bounded_time(fake: FakeWorld) -> None:
    work = counting(fake.name)
    later = RetryPolicy(immediate=0, delays=(600.0,))
    await started(fake, work, retry=later, max_waiting=2000, hold_back=60.0, partitions=1)
    work.hooks.before = Failing(fake, {("hot", 0): 1}, TransientError("busy"))
    await fake.post(*hot(fake, work, 3000), fake.event(work, "late", 0))
    began = fake.clock.now()
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: ("late", 0) in work.hooks.calls)
    assert 60 <= fake.clock.now() - began < 600
    said = [(each["event"], each["log_level"]) for each in logs if each["event"].startswith("reading_")]
    assert said == [("reading_held_back", "warning"), ("reading_goes_on", "info")]
    await fake.until(lambda: ("hot", 1999) in work.hooks.calls)
    await stopped(fake, lane, work.source)
    letters = await dead_letters(fake, work.source)
    assert {dict(letter.headers)["dlq-error-type"] for letter in letters} == {b"QueueFull"}
    assert len(letters) == 1000
