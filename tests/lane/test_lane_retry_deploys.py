"""What waits outlives the version of the application that made it wait."""

from lane_checker import counts
from lane_failing import LATER, Failing, letters_of, nothing_waits, pass_time, started
from lane_scenes import cleared, opened, stopped_empty
from lane_workloads import counting, deployed
from lane_worlds import FakeWorld

from streams.errors import TransientError


async def test_what_waits_of_a_dropped_topic_waits_for_its_return(fake: FakeWorld) -> None:
    work, without = deployed(fake.name, 1, 2), deployed(fake.name, 2)
    await started(fake, work, retry=LATER)
    work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    lane = await opened(fake, fake.event(work, "a", 0))
    await stopped_empty(fake, work, lane)
    lane = await fake.open(app=fake.cut_into(without, lanes=1))
    await fake.post(fake.event(without, "a", 1), fake.event(without, "b", 2))
    await fake.until(lambda: bool(without.hooks.calls))
    await pass_time(fake, 3.0)
    assert (lane.lane.state, lane.lane.reopened) == ("open", 0)
    assert without.hooks.calls == [("b", 2)], "those of the key wait behind it"
    await lane.stop()
    lane = await fake.open()
    await cleared(fake, lane, lambda: len(work.hooks.calls) == 3)
    assert work.hooks.calls == [("a", 0), ("a", 0), ("a", 1)]
    assert await counts(fake) == {"a": 2, "b": 1}


async def test_what_waits_for_a_handler_waits_until_its_return(fake: FakeWorld) -> None:
    work, without = counting(fake.name, tallied=True), counting(fake.name)
    await started(fake, work, retry=LATER)
    work.hooks.before_tally = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    lane = await opened(fake, fake.event(work, "a", 0))
    await stopped_empty(fake, work, lane)
    lane = await fake.open(app=fake.cut_into(without, lanes=1))
    await pass_time(fake, 3.0)
    assert (lane.lane.state, lane.lane.reopened) == ("open", 0)
    await lane.stop()
    lane = await fake.open()
    await pass_time(fake, 1.0)
    await lane.stop()
    assert await counts(fake, "tallies") == {"a": 1}
    await nothing_waits(fake)


async def test_what_a_newer_version_cannot_decode_is_dead(fake: FakeWorld) -> None:
    work, newer = deployed(fake.name, 1), deployed(fake.name, 1, wants_colour=True)
    await started(fake, work, retry=LATER)
    work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    coloured = fake.event(work, "a", 1)
    await fake.post(fake.event(work, "a", 0), coloured._replace(value=b'{"k": "a", "i": 1, "colour": "red"}'))
    lane = await fake.open()
    await stopped_empty(fake, work, lane)
    lane = await fake.open(app=fake.cut_into(newer, lanes=1))
    await cleared(fake, lane, lambda: newer.hooks.calls == [("a", 1)])
    assert not lane.lane.reopened
    (letter,) = await letters_of(fake, work)
    assert letter["dlq-error-type"] == b"Undecodable"
    assert letter["dlq-handler"] == b"bench.count"
    assert await counts(fake) == {"a": 1}
