"""What a lane itself keeps and cannot read stops what needs it, not the lane, and not the worker."""

from typing import Any

import pytest
from lane_checker import counts, latest
from lane_desk import letter_ids, letters, operated, operation
from lane_scenes import counter
from lane_worlds import FakeWorld, Post, Running
from structlog.testing import capture_logs

from streams.engine.staging.keys import HANDLER, POSITION, TIMER, WAITING, time_key
from streams.engine.staging.timers import timer_name
from streams.engine.waiting.queue import Reason, begin, queue_name, set_queue
from streams.errors import ChangelogDamaged, PositionLost, TransientError
from streams.model.layout import DEAD_LETTERS, INBOX, LANE
from streams.model.operations import LetterCommand
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise("unreadable-state")

COUNT = b"bench.count"
#: Bytes that are nothing which a lane keeps.
GARBAGE = [b"", b"\xff\xff", b"\xc1" * 40, b'{"n":null}' * 4]


def kept(world: FakeWorld, table: str, key: bytes, value: bytes, of: str = "a") -> Post:
    partition = world.app.layout.partition_of(of.encode())
    return Post(world.app.layout.changelog(table), partition, key, value, [])


async def goes_on(world: FakeWorld, work: Any, running: Running, keys: str = "bc") -> None:
    """Other keys are handled, and the lane has never been opened again."""
    await world.post(*(world.event(work, key, 0) for key in keys))
    await world.settled(work.source)
    assert {key: (await counts(world)).get(key) for key in keys} == dict.fromkeys(keys, 1)
    assert (running.lane.state, running.lane.reopened) == ("open", 0)


@pytest.mark.parametrize("value", GARBAGE, ids=range(4))
async def test_a_queue_that_cannot_be_read_stops_its_key(fake: FakeWorld, value: bytes) -> None:
    """A timer that cannot be read stops no key."""
    work = await counter(fake)
    name = b"q" + queue_name(COUNT, b"a")
    await fake.post(kept(fake, LANE, name, value and time_key(0) + time_key(1) + value))
    timer = TIMER + timer_name(COUNT, b"c", "later")
    await fake.post(kept(fake, LANE, timer, time_key(1) + value, of="c"))
    running = await fake.open()
    await fake.clock.sleep(5)
    await fake.post(*(fake.event(work, "a", i) for i in range(2)))
    await goes_on(fake, work, running)
    if value:
        found = await letters(fake)
        assert [each.error_type for each in found] == ["RowUnreadable"] * 2
        assert (await latest(fake, LANE))[fake.app.layout.partition_of(b"a"), name].endswith(value)
    assert len(running.lane.unreadable.texts()) == 2


@pytest.mark.parametrize("value", [*GARBAGE, None], ids=range(5))
async def test_an_unreadable_waiting_message_stops_its_key(fake: FakeWorld, value: bytes | None) -> None:
    work = await counter(fake)
    name = queue_name(COUNT, b"a")
    change = set_queue(name, begin(Reason.RETRY, due_ms=1, attempts=1, size=9))
    await fake.post(kept(fake, LANE, change.key, change.value or b""))
    if value is not None:
        await fake.post(kept(fake, LANE, WAITING + name + bytes(8), value))
    with capture_logs() as logs:
        running = await fake.open()
        await fake.post(*(fake.event(work, "a", i) for i in range(2)))
        await goes_on(fake, work, running)
        await fake.clock.sleep(100)
    assert running.lane.state == "open"
    assert len(running.lane.unreadable.texts()) == 1
    assert len([each for each in logs if each["event"] == "row_unreadable"]) == 1
    assert not await letters(fake)


@pytest.mark.parametrize("value", GARBAGE, ids=range(4))
async def test_a_pause_that_cannot_be_read_holds_its_handler(fake: FakeWorld, value: bytes) -> None:
    work = await counter(fake, tallied=True)
    await fake.post(kept(fake, LANE, HANDLER + COUNT, value))
    running = await fake.open()
    await fake.post(fake.event(work, "a", 0))
    await fake.settled(work.source)
    assert running.lane.counters.waiting == 1
    assert (running.lane.state, running.lane.reopened) == ("open", 0)


@pytest.mark.parametrize("value", GARBAGE, ids=range(4))
async def test_a_dead_letter_that_cannot_be_read_harms_nobody(fake: FakeWorld, value: bytes) -> None:
    work = await counter(fake, retry=RetryPolicy(immediate=0, delays=()))

    def before(event: Any) -> None:
        if event.k == "a":
            raise TransientError("busy")

    work.hooks.before = before
    running = await fake.open()
    await fake.post(fake.event(work, "a", 0))
    await fake.settled(work.source)
    (ident,) = await letter_ids(fake)
    ((_, key),) = await latest(fake, DEAD_LETTERS)
    await running.stop()
    spoilt = value and b"\x01" + time_key(1) + value
    await fake.post(kept(fake, DEAD_LETTERS, key, spoilt or b"\x07"))
    running = await fake.open()
    await operated(fake, running, operation(fake, LetterCommand.REPLAY, ident))
    await fake.post(fake.event(work, "a", 1))
    await goes_on(fake, work, running)


@pytest.mark.parametrize("value", [b"x", b"\xff", b"12 a-b"])
async def test_a_position_that_cannot_be_read_keeps_its_lane_closed(fake: FakeWorld, value: bytes) -> None:
    work = await counter(fake)
    await fake.post(kept(fake, LANE, POSITION + work.source.encode(), value))
    running = fake.lane()
    running.may_fail = True
    await fake.until(running.task.done)
    with pytest.raises(PositionLost, match="cannot be read"):
        running.task.result()


@pytest.mark.parametrize("value", GARBAGE[:3], ids=range(3))
async def test_an_inbox_that_cannot_be_read_keeps_its_lane_closed(fake: FakeWorld, value: bytes) -> None:
    await counter(fake)
    await fake.post(kept(fake, INBOX, b"k", value))
    running = fake.lane()
    await fake.until(lambda: running.lane.reopened > 3)
    assert isinstance(running.lane.error, ChangelogDamaged)
    assert "inbox" in str(running.lane.error)
    assert not running.task.done()
