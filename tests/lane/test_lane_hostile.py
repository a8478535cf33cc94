"""Records that other clients write and no reader can read: each is a dead letter once, with its bytes as they
came, and all others are handled.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from lane_checker import check, dead_letters
from lane_desk import letter_ids, letters, operated, operation, operations_log, results
from lane_failing import finish
from lane_workloads import Workload, counting
from lane_worlds import Post, World
from structlog.testing import capture_logs

from streams.engine.life.recovery import open_store
from streams.engine.life.standby import Standby
from streams.kafka.records.batches import BATCH, RECORD, REST
from streams.model.operations import HANDLER_OPERATION, LetterCommand
from streams.ports import TP, Ports
from streams.testing.batches import CODECS, batch, record
from streams.testing.faults import NoFaults
from tests.hostile import BOMBS, DAMAGED, UNFRAMED, UNOPENED

pytestmark = pytest.mark.promise("unreadable-records")

NAME = "a header's name that is not UTF-8"


def wire(delta: int, post: Post) -> bytes:
    return record(delta, post.key, post.value, post.headers)


class Beside:
    """A partition with good events of one key before, after and in the batch of what is no record."""

    def __init__(self, world: World, work: Workload) -> None:
        self.world, self.work = world, work
        self.good = [world.event(work, "a", i) for i in range(4)]
        self.tp = TP(work.source, self.good[0].partition)

    def within(self, bad: bytes, codec: str = "none") -> bytes:
        return batch([wire(0, self.good[1]), bad, wire(2, self.good[2])], codec=codec)

    async def handled(self, raw: bytes, *, good: tuple[int, ...]) -> Any:
        """Handle all that is good; returns the one dead letter."""
        world, work = self.world, self.work
        await world.post(self.good[0])
        await world.post_batch(self.tp, raw)
        await world.post(self.good[3])
        lane = await world.open()
        await world.until(lambda: lane.handled == len(good) and lane.lane.counters.dead_letters == 1)
        await finish(world, work, lane, [self.good[i] for i in good])
        assert lane.lane.reopened == 0
        (letter,) = await dead_letters(world, work.source)
        return letter


async def beside(world: World, **lane_options: Any) -> Beside:
    await world.start(work := counting(world.name), **lane_options)
    return Beside(world, work)


def told(letter: Any, form: str, offset: int) -> None:
    """The letter says what it is and where it was, and nothing in it passes for a message's."""
    added = dict(letter.headers)
    assert all(name.startswith("dlq-") for name in added)
    assert added["dlq-error-type"] == b"Unreadable"
    assert added["dlq-raw"] == form.encode()
    assert added["dlq-source-offset"] == b"%d" % offset
    assert b"cannot be read: " in added["dlq-error-message"]


async def passed_over(here: Beside, write: Callable[[], Awaitable[None]]) -> None:
    """What is written is said to be unreadable, and the lane goes on."""
    world = here.world
    lane = await world.open()
    with capture_logs() as logs:
        await write()
        await world.until(lambda: any(each["event"] == "operation_unreadable" for each in logs))
    await world.post(here.good[0])
    await world.until(lambda: lane.handled == 1)
    assert lane.lane.reopened == 0


async def with_a_damaged_changelog(world: World, events: int) -> TP:
    """A lane has counted events of a key and has stopped; the first count is damaged."""
    await world.start(work := counting(world.name))
    lane = await world.open()
    for i in range(events):
        await world.post(event := world.event(work, "a", i))
        await world.until(lambda i=i: lane.handled == i + 1)  # type: ignore[misc]
        await world.settled(work.source)
    await lane.stop()
    changelog = TP(world.app.layout.changelog("counts"), event.partition)
    await world.spoil(changelog, 0)
    return changelog


@pytest.mark.parametrize(
    ("what", "codec"),
    [(what, "none") for what in DAMAGED]
    + [pytest.param(NAME, c, marks=[pytest.mark.landing] if c == "gzip" else []) for c in CODECS],
)
async def test_an_unreadable_record_is_buried_and_its_neighbours_handled(
    world: World, what: str, codec: str
) -> None:
    here = await beside(world)
    letter = await here.handled(here.within(DAMAGED[what], codec), good=(0, 1, 2, 3))
    assert (letter.key, letter.value) == (b"k", DAMAGED[what])
    told(letter, RECORD, 2)


@pytest.mark.parametrize("what", UNFRAMED)
async def test_records_that_cannot_be_told_apart_are_one_dead_letter(world: World, what: str) -> None:
    here = await beside(world)
    letter = await here.handled(here.within(UNFRAMED[what]), good=(0, 1, 3))
    assert (letter.key, letter.value) == (None, UNFRAMED[what] + wire(2, here.good[2]))
    told(letter, REST, 3)


@pytest.mark.parametrize("what", UNOPENED)
async def test_a_batch_that_cannot_be_opened_is_one_dead_letter(world: World, what: str) -> None:
    here = await beside(world)
    codec, body = UNOPENED[what]
    raw = batch([b""] * 5, body=body, attributes=codec)
    letter = await here.handled(raw, good=(0, 3))
    assert (letter.key, letter.value[16:]) == (None, raw[16:])
    told(letter, BATCH, 5)


@pytest.mark.parametrize("codec", BOMBS)
async def test_a_bomb_is_one_dead_letter(world: World, codec: str) -> None:
    here = await beside(world, max_message_bytes=1_000_000)
    raw = BOMBS[codec]()
    letter = await here.handled(raw, good=(0, 3))
    # A broker that stamps records notes that in the attributes, and its time behind them.
    assert letter.value[22] & 0b111 == raw[22]
    assert letter.value[43:] == raw[43:]
    told(letter, BATCH, 1)


async def test_what_the_disk_has_damaged_is_one_dead_letter(world: World) -> None:
    here = await beside(world)
    await world.post(world.event(here.work, "a", 9))
    await world.spoil(here.tp, 0)
    await world.post(here.good[0])
    lane = await world.open()
    await world.until(lambda: lane.handled == 1 and lane.lane.counters.dead_letters == 1)
    await lane.stop()
    (letter,) = await dead_letters(world, here.work.source)
    assert b"its checksum is wrong" in dict(letter.headers)["dlq-error-message"]
    await check(world, here.work, here.good[:1])


@pytest.mark.promise("compression")
@pytest.mark.parametrize("codec", CODECS)
async def test_what_another_client_has_compressed_is_handled(world: World, codec: str) -> None:
    await world.start(work := counting(world.name))
    events = [world.event(work, "a", i) for i in range(5)]
    raw = batch([wire(i, event) for i, event in enumerate(events)], codec=codec)
    await world.post_batch(TP(work.source, events[0].partition), raw)
    lane = await world.open()
    await world.until(lambda: lane.handled == 5)
    await finish(world, work, lane, events)
    assert await dead_letters(world, work.source) == []


# -- what operators do about them -------------------------------------------------------------------------


async def test_a_letter_of_the_unreadable_is_edited_not_replayed(world: World) -> None:
    here = await beside(world, edit_dead_letters=True)
    await here.handled(here.within(DAMAGED[NAME]), good=(0, 1, 2, 3))
    (ident,) = await letter_ids(world)
    lane = await world.open()
    event = world.event(here.work, "k", 7, partition=here.tp.partition)
    half = operation(world, LetterCommand.EDIT, ident, operation_id="half", value=event.value)
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await operated(world, lane, half)
    said = [done["result"] for done in await operations_log(world)]
    assert all("not a message, but unreadable bytes" in each for each in said)
    (letter,) = await letters(world)
    assert (letter.value, letter.headers, letter.error_type) == (DAMAGED[NAME], [], "Unreadable")
    whole = operation(world, LetterCommand.EDIT, ident, value=event.value, headers=event.headers)
    await operated(world, lane, whole)
    kind, how = zip(*(await results(world))[2:], strict=True)
    assert sorted(kind) == ["edit", "replayed"]
    assert "succeeded" in how
    await lane.stop()
    assert await letters(world) == []


async def test_a_letter_of_something_unreadable_is_discarded(world: World) -> None:
    here = await beside(world)
    await here.handled(here.within(UNFRAMED["no length"]), good=(0, 1, 3))
    (ident,) = await letter_ids(world)
    lane = await world.open()
    await operated(world, lane, operation(world, LetterCommand.DISCARD, ident))
    assert await results(world) == [("discard", "discarded")]


@pytest.mark.promise("unreadable-operations")
async def test_an_operation_that_cannot_be_read_is_passed_over(world: World) -> None:
    raw = batch([DAMAGED[NAME]], last_delta=0)
    here = await beside(world)
    await passed_over(here, lambda: world.post_batch(TP(world.app.layout.operations, 0), raw))


@pytest.mark.promise("unreadable-operations")
@pytest.mark.parametrize("of", ["a letter", "a handler"])
async def test_an_operation_that_is_nested_without_end_is_passed_over(world: World, of: str) -> None:
    here = await beside(world)
    headers = [("ce_id", b"op-1"), *([("ce_type", HANDLER_OPERATION.encode())] if of == "a handler" else [])]
    nested = Post(world.app.layout.operations, 0, b"k", b'{"x":' * 3_000, headers)
    await passed_over(here, lambda: world.post(nested))


# -- where nothing may be passed over ---------------------------------------------------------------------


@pytest.mark.promise("damaged-changelog")
async def test_a_lane_does_not_open_over_a_damaged_changelog(world: World) -> None:
    changelog = await with_a_damaged_changelog(world, 1)
    lane = world.lane(stores=world.stores())
    await world.until(lambda: lane.lane.error is not None)
    assert type(lane.lane.error).__name__ == "ChangelogDamaged"
    said = str(lane.lane.error)
    assert all(each in said for each in (changelog.topic, "checksum", "docs/operating.md")), said
    assert lane.lane.state != "open"


@pytest.mark.promise("damaged-changelog")
async def test_a_standby_copies_nothing_past_a_damaged_changelog(world: World) -> None:
    changelog = await with_a_damaged_changelog(world, 2)
    elsewhere = world.stores()
    standby = Standby(world.app, 0, Ports(world.cluster, elsewhere, world.clock, NoFaults()))
    with capture_logs() as logs:
        task = world.spawn(standby.run())
        await world.until(lambda: any(each["event"] == "standby_stands" for each in logs))
        standby.stop()
        await world.until(task.done)
    store = open_store(elsewhere, 0, followed=False)
    try:
        assert (store.position(changelog), list(store.scan("counts"))) == (0, [])
    finally:
        store.close()
