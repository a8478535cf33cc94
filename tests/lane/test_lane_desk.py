"""Dead letters are rows that operators put right: a replay runs once, in its place, for the handler that
failed; nothing else moves.
"""

from itertools import pairwise
from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_desk import (
    Broken,
    letter_ids,
    letters,
    letters_by_id,
    operated,
    operation,
    operations_log,
    order_of,
    results,
)
from lane_failing import Failing, nothing_waits, started, with_header
from lane_pausing import asked
from lane_scenes import POINTS, until_so
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs

import streams.engine.waiting.dead_letters.expiry
from streams.engine.life.housekeeping import HOUSEKEEPING
from streams.engine.staging.changes import DEAD_LETTERS_BY_AGE
from streams.engine.waiting.dead_letters.expiry import ROUND
from streams.engine.waiting.dead_letters.row import LetterState, decode_letter
from streams.errors import TransientError
from streams.model.envelope import WITHIN
from streams.model.layout import DEAD_LETTERS
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.policy.retry import RetryPolicy

EXPIRING = {"dead_letter_retention": 100.0, "inbox_retention": 1e6}
REPLAY = LetterCommand.REPLAY
HOLDING = RetryPolicy(delays=(), hold_while_dead=True)


async def with_a_letter(
    world: World, work: Workload, **lane_options: Any
) -> tuple[Any, Broken, list[Post], str]:
    """A lane that has given up the second of three events of a key; its letter."""
    await started(world, work, **lane_options)
    lane, broken, events = await gives_up(world, work, range(3), 1)
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and lane.handled == 3)
    await world.settled(work.source)
    (ident,) = await letter_ids(world)
    return lane, broken, events, ident


async def quiet(world: World, lane: Any, **counters: int) -> None:
    """Wait until the lane's counters say so, and it has nothing to do."""
    await world.until(
        lambda: (
            not lane.lane.backlog
            and all(getattr(lane.lane.counters, name) == n for name, n in counters.items())
        )
    )


async def gives_up(
    world: World, work: Workload, numbers: range, *broken: int
) -> tuple[Any, Broken, list[Post]]:
    """A lane that takes events of a key, of which its handler can do nothing with some."""
    work.hooks.before = bug = Broken(*(("a", i) for i in broken))
    await world.post(*(events := [world.event(work, "a", i) for i in numbers]))
    return await world.open(), bug, events


async def replayed(world: World, lane: Any, *idents: str, **more: Any) -> None:
    await operated(world, lane, *(operation(world, REPLAY, ident, **more) for ident in idents))
    await quiet(world, lane, replayed=len(idents))


async def stopped(world: World, work: Workload, lane: Any, events: list[Post]) -> None:
    """All events have been handled once, and no letter is left."""
    await lane.stop()
    await check(world, work, events)
    assert await letters(world) == []
    await check_store(world)


async def none_left(world: World) -> None:
    """Wait until there is no letter."""

    async def none() -> bool:
        return not await letters(world)

    await until_so(world, none)


@pytest.mark.promise("dead-letters")
async def test_a_dead_letter_keeps_all_that_came_and_why(world: World) -> None:
    lane, _, events, _ = await with_a_letter(world, work := counting(world.name))
    await lane.stop()
    (letter,) = await letters(world)
    assert (letter.key, letter.value, letter.headers) == (events[1].key, events[1].value, events[1].headers)
    assert (letter.topic, letter.partition, letter.offset) == (work.source, events[1].partition, 1)
    assert (letter.handler, letter.service, letter.attempts) == ("bench.count", "bench", 1)
    assert (letter.error_type, letter.error_message) == ("PermanentError", "there is a bug")
    assert letter.place.startswith("lane_desk.py:")
    assert letter.place.endswith(" __call__")
    assert "there is a bug" in letter.trace
    assert (letter.state, letter.replays, letter.history) == (LetterState.DEAD, 0, [])
    await check_store(world)


@pytest.mark.promise("unreadable-operations")
@pytest.mark.parametrize("at_ms", [-1, 10**15, 1 << 62, 10**30, 10**400], ids=range(5))
async def test_an_operation_of_no_time_is_passed_over(world: World, at_ms: int) -> None:
    lane, broken, events, ident = await with_a_letter(world, work := counting(world.name))
    asked = operation(world, REPLAY, ident, operation_id="of no time")
    (text, _) = asked.value.split(b'"at_ms":1') if asked.value else (b"", b"")
    with capture_logs() as logs:
        await world.post(asked._replace(value=text + b'"at_ms":%d}' % at_ms))
        broken.mend()
        await replayed(world, lane, ident)
    assert [each["event"] for each in logs if "unreadable" in each["event"]] == ["operation_unreadable"]
    assert lane.lane.reopened == 0
    assert await results(world) == [("replay", "replaying"), ("replayed", "succeeded")]
    await stopped(world, work, lane, events)


@pytest.mark.promise("dead-letters")
async def test_a_replay_reaches_only_the_handler_that_failed(world: World) -> None:
    lane, broken, events, ident = await with_a_letter(world, work := counting(world.name, tallied=True))
    broken.mend()
    await replayed(world, lane, ident)
    await world.until(lambda: lane.handled == 4)
    await stopped(world, work, lane, events)
    assert await order_of(world, work, "a") == [0, 2, 1]
    assert await results(world) == [("replay", "replaying"), ("replayed", "succeeded")]
    assert [(done["who"], done["why"]) for done in await operations_log(world)] == [("ann", "mended")] * 2
    assert await counts(world, "tallies") == {"a": 3}, "it reaches only the handler that failed"


@pytest.mark.promise("dead-letters")
async def test_replaying_twice_at_once_runs_once(world: World) -> None:
    lane, broken, events, ident = await with_a_letter(world, work := counting(world.name))
    broken.mend()
    first = operation(world, REPLAY, ident)
    await operated(world, lane, first, operation(world, REPLAY, ident, operation_id="another"))
    await world.post(first)
    await world.until(lambda: lane.lane.counters.duplicates == 1 and lane.lane.counters.replayed == 1)
    await world.settled(work.source, world.app.layout.operations)
    await quiet(world, lane)
    await stopped(world, work, lane, events)
    assert len(await results(world)) == 3


@pytest.mark.promise("dead-letters")
async def test_a_letter_is_parked_after_three_replays_that_fail(world: World) -> None:
    lane, broken, events, ident = await with_a_letter(world, work := counting(world.name))
    for n in range(1, 5):
        await operated(world, lane, operation(world, REPLAY, ident, operation_id=f"try-{n}"))
        await quiet(world, lane, dead_letters=min(n + 1, 4))
    (parked,) = await letters(world)
    assert (parked.state, parked.replays) == (LetterState.PARKED, 3)
    assert parked.history[-1].result.startswith("refused: it is parked")
    assert len(await dead_letters(world, work.source)) == 4
    ended = [done for done in await operations_log(world) if done["operation"] == "replayed"]
    assert [(done["who"], done["why"]) for done in ended] == [("ann", "mended")] * 3, "who asked for it"
    broken.mend()
    await replayed(world, lane, ident, operation_id="forced", force=True)
    await stopped(world, work, lane, events)


@pytest.mark.promise("dead-letters")
async def test_replays_run_before_what_waits_in_the_order_of_sources(world: World) -> None:
    await started(world, work := counting(world.name), retry=RetryPolicy(immediate=0, delays=(2.0,)))
    lane, broken, events = await gives_up(world, work, range(3), 0, 1)
    await quiet(world, lane, dead_letters=2)
    broken.which = {("a", 3)}
    broken.error = TransientError("not yet")
    await world.post(*(more := [world.event(work, "a", i) for i in range(3, 6)]))
    await world.until(lambda: lane.lane.counters.retries == 1 and lane.lane.counters.waiting >= 3)
    replays = [operation(world, REPLAY, ident) for ident in await letter_ids(world)]
    await operated(world, lane, *replays)
    broken.mend()
    await quiet(world, lane, replayed=2)
    await world.until(lambda: len(work.hooks.calls) >= 9)
    await world.settled(work.source)
    await quiet(world, lane)
    await stopped(world, work, lane, events + more)
    assert [i for i in await order_of(world, work, "a") if i != 2] == [0, 1, 3, 4, 5]


@pytest.mark.promise("dead-letters")
@pytest.mark.parametrize(
    "point", [*POINTS[:4], pytest.param("committed", marks=pytest.mark.landing), POINTS[5]]
)
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_crash_in_a_replay_neither_loses_nor_repeats_it(world: World, point: str, nth: int) -> None:
    lane, broken, events, ident = await with_a_letter(world, work := counting(world.name))
    broken.mend()
    world.faults.kill_at(point, nth=world.faults.reached[point] + nth)
    first = operation(world, REPLAY, ident)
    await world.post(first)
    await lane.killed()
    await world.post(first, operation(world, REPLAY, ident, operation_id="2"))
    again = await world.open()
    await world.settled(world.app.layout.operations)
    await none_left(world)
    await quiet(world, again)
    await stopped(world, work, again, events)
    assert ("replayed", "succeeded") in await results(world)


async def test_a_discarded_letter_is_replayed_only_once_it_is_restored(world: World) -> None:
    lane, broken, events, ident = await with_a_letter(world, work := counting(world.name))
    broken.mend()
    await operated(
        world,
        lane,
        operation(world, LetterCommand.DISCARD, ident, why="", operation_id="no reason"),
        operation(world, LetterCommand.DISCARD, ident, why="a test order"),
        operation(world, REPLAY, ident, operation_id="too late"),
        operation(world, LetterCommand.DISCARD, ident, operation_id="again"),
    )
    (discarded,) = await letters(world)
    assert discarded.state is LetterState.DISCARDED
    said = [event.result.partition(":")[0] for event in discarded.history]
    assert said == ["refused", "discarded", "refused", "refused"]
    assert discarded.history[1].why == "a test order"
    await operated(world, lane, operation(world, LetterCommand.RESTORE, ident))
    await replayed(world, lane, ident)
    await stopped(world, work, lane, events)


async def test_an_edited_message_is_new_and_may_be_edited_again(world: World) -> None:
    work = counting(world.name)
    lane, broken, _, ident = await with_a_letter(world, work, edit_dead_letters=True)
    broken.which.add(("a", 6))
    for number, counters in ((6, {"dead_letters": 2}), (7, {"replayed": 1})):
        edit = {"value": b'{"k":"a","i":%d}' % number, "operation_id": f"edit-{number}"}
        await operated(world, lane, operation(world, LetterCommand.EDIT, ident, **edit))
        await quiet(world, lane, **counters)
    await lane.stop()
    assert await order_of(world, work, "a") == [0, 2, 7]
    assert [name for name, _ in await results(world)] == ["edit", "replayed"] * 2
    new = (await world.records(work.output))[-1]
    ids = ["a-1", *(done["result"].split()[4].rstrip(",") for done in (await operations_log(world))[::2])]
    assert ids[2].encode() == dict(new.headers)["ce_causationid"]
    assert len({*ids, "a-0", "a-2"}) == 5
    for (former, latter), edit in zip(pairwise(ids), (await operations_log(world))[::2], strict=True):
        assert edit["result"] == f"edited and replaying as {latter}, it was {former}"


@pytest.mark.promise("dead-letters")
async def test_an_unread_message_is_taken_anew_by_all_its_handlers(world: World) -> None:
    await started(world, work := counting(world.name, tallied=True), edit_dead_letters=True)
    before, bad, after = (world.event(work, "a", i) for i in range(3))
    await world.post(before, bad._replace(value=b"{"), after)
    lane = await world.open()
    await world.settled(work.source)
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, REPLAY, ident))
    (letter,) = await letters(world)
    assert (letter.handler, letter.state, letter.replays) == ("", LetterState.DEAD, 1)
    await operated(world, lane, operation(world, LetterCommand.EDIT, ident, value=b'{"k":"a","i":1}'))
    await world.until(lambda: lane.handled == 3 and not lane.lane.backlog)
    await lane.stop()
    assert await order_of(world, work, "a") == [0, 2, 1]
    assert await counts(world) == await counts(world, "tallies") == {"a": 3}
    assert await letters(world) == []
    assert len(await world.records(work.source)) == 3
    await check_store(world)


async def test_the_time_of_a_message_taken_anew_begins_then(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), edit_dead_letters=True)
    work.hooks.before = tried = Failing(fake, {("a", 1): 1}, TransientError("busy"))
    await fake.post(with_header(fake.event(work, "a", 1)._replace(value=b"{"), WITHIN, b"60"))
    lane = await fake.open()
    await fake.settled(work.source)
    (ident,) = await letter_ids(fake)
    await operated(fake, lane, operation(fake, LetterCommand.EDIT, ident, value=b'{"k":"a","i":1}'))
    await fake.until(lambda: lane.handled == 1 and not lane.lane.backlog)
    assert len(tried.of("a", 1)) == 2
    assert await letters(fake) == []


@pytest.mark.promise("hold-while-dead")
@pytest.mark.parametrize("how", ["replayed", "discarded", "killed and replayed"])
async def test_later_messages_wait_until_a_holding_letter_is_settled(world: World, how: str) -> None:
    await started(world, work := counting(world.name), retry=HOLDING)
    lane, broken, events = await gives_up(world, work, range(3), 1)
    await quiet(world, lane, dead_letters=1, waiting=1)
    await world.settled(work.source)
    (ident,) = await letter_ids(world)
    assert await order_of(world, work, "a") == [0]
    if how.startswith("killed"):
        world.faults.kill_at("committed", nth=world.faults.reached["committed"] + 1)
        await world.post(operation(world, LetterCommand.DISCARD, ident, why="", operation_id="ends it"))
        await lane.killed()
        lane = await world.open(stores=world.stores())
        await world.settled(world.app.layout.operations)
    await operated(world, lane, operation(world, REPLAY, ident, operation_id="in vain"))
    await world.until(lambda: lane.lane.counters.dead_letters >= 1 and not lane.lane.backlog)

    async def held_again() -> bool:
        return (await letters(world))[0].replays > 0

    await until_so(world, held_again)
    assert await order_of(world, work, "a") == [0]
    if how == "discarded":
        await operated(world, lane, operation(world, LetterCommand.DISCARD, ident))
        wanted = [0, 2]
    else:
        broken.mend()
        await operated(world, lane, operation(world, REPLAY, ident))
        wanted = [0, 1, 2]
    await settles(world, work, wanted)
    await lane.stop()
    await check(world, work, [events[i] for i in wanted])
    await nothing_waits(world)
    if not how.startswith("killed"):
        await check_store(world)


async def settles(world: World, work: Workload, wanted: list[int]) -> None:
    """Wait until these events have been passed on, in this order."""

    async def settled() -> bool:
        return await order_of(world, work, "a") == wanted

    await until_so(world, settled)


async def test_what_overflowed_is_replayed_in_order_when_there_is_room(world: World) -> None:
    await started(world, work := counting(world.name), retry=HOLDING, max_waiting=3)
    lane, broken, events = await gives_up(world, work, range(6), 0)
    await quiet(world, lane, dead_letters=4)
    holder, *full = await letter_ids(world)
    assert {letter.error_type for letter in (await letters(world))[1:]} == {"QueueFull"}
    await operated(world, lane, operation(world, REPLAY, full[0], operation_id="too early"))
    assert "try again later" in (await letters(world))[1].history[-1].result
    broken.mend()
    await operated(world, lane, operation(world, REPLAY, holder))
    await settles(world, work, [0, 1, 2])
    await operated(world, lane, *(operation(world, REPLAY, ident) for ident in full))
    await settles(world, work, [0, 1, 2, 3, 4, 5])
    await lane.stop()
    await check(world, work, events)


@pytest.mark.promise("hold-while-dead")
@pytest.mark.slow("weeks of virtual time")
async def test_dead_letters_expire_unless_others_wait_behind_them(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), retry=HOLDING, **EXPIRING)
    work.hooks.before = broken = Broken(("a", 0), ("b", 0))
    await fake.post(*[fake.event(work, key, i) for i in range(2) for key in "ab"])
    lane = await fake.open()
    await quiet(fake, lane, dead_letters=2)
    by_key = {letter.key: ident for ident, letter in (await letters_by_id(fake)).items()}
    await operated(fake, lane, operation(fake, LetterCommand.DISCARD, by_key[b"b"]))
    await fake.clock.advance(90)
    assert len(await letters(fake)) == 2
    await fake.clock.advance(ROUND)
    await quiet(fake, lane, expired_letters=1)
    (left,) = await letters(fake)
    assert left.key == b"a"
    with capture_logs() as logs:
        await fake.clock.advance(2 * HOUSEKEEPING)  # two rounds more
    alert, *_ = [line for line in logs if line["event"] == "dead_letter_holds"]
    told = [alert[name] for name in ("log_level", "handler", "letters", "held")]
    assert told == ["error", "bench.count", 1, 1]
    assert await letters(fake) == [left]
    broken.mend()
    await operated(fake, lane, operation(fake, REPLAY, by_key[b"a"]))
    await settles(fake, work, [0, 1])
    await lane.stop()
    assert await letters(fake) == []
    await check_store(fake)


async def test_a_holding_letter_whose_row_is_gone_is_written_again(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), retry=HOLDING)
    work.hooks.before = broken = Broken(("a", 0))
    await fake.post(*[fake.event(work, "a", i) for i in range(2)])
    lane = await fake.open()
    await quiet(fake, lane, dead_letters=1, waiting=1)
    ((local, before),) = [(key, value) for key, value in lane.lane.store.scan(DEAD_LETTERS)]
    lane.lane.store.apply([(DEAD_LETTERS, local, None)], {})
    await fake.clock.advance(HOUSEKEEPING)
    await quiet(fake, lane, dead_letters=2)
    ((ident, letter),) = (await letters_by_id(fake)).items()
    first = decode_letter(before)
    assert (letter.value, letter.headers, letter.queue) == (first.value, first.headers, first.queue)
    broken.mend()
    await operated(fake, lane, operation(fake, REPLAY, ident))
    await settles(fake, work, [0, 1])


async def test_letters_that_cannot_expire_do_not_keep_younger_ones(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.engine.waiting.dead_letters.expiry, "STEP", 2)
    await started(fake, work := counting(fake.name), retry=HOLDING, **EXPIRING)
    work.hooks.before = Broken(*[(key, 0) for key in "abcdef"])
    lane = await fake.open()
    for key in "abcdef":
        await fake.post(fake.event(work, key, 0))
        await fake.clock.advance(1.0)
    await quiet(fake, lane, dead_letters=6)
    youngest = (await letter_ids(fake))[[letter.key for letter in await letters(fake)].index(b"f")]
    await operated(fake, lane, operation(fake, LetterCommand.DISCARD, youngest))
    await fake.clock.advance(ROUND + 100)
    await quiet(fake, lane, expired_letters=1)
    await lane.stop()
    assert {letter.key for letter in await letters(fake)} == {b"a", b"b", b"c", b"d", b"e"}


@pytest.mark.promise("hold-while-dead")
@pytest.mark.slow("weeks of virtual time")
async def test_a_letter_that_is_being_replayed_does_not_expire(fake: FakeWorld) -> None:
    lane, broken, _, ident = await with_a_letter(fake, work := counting(fake.name), **EXPIRING)
    await asked(fake, HandlerCommand.PAUSE)
    await operated(fake, lane, operation(fake, REPLAY, ident))
    for _ in range(3):
        await fake.clock.advance(ROUND)
        await settles(fake, work, [0, 2])
    assert [letter.state for letter in await letters(fake)] == [LetterState.REPLAYING]
    broken.mend()
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: lane.lane.counters.replayed == 1)
    await settles(fake, work, [0, 2, 1])
    await lane.stop()
    assert await letters(fake) == []
    assert lane.lane.counters.expired_letters == 0
    await check_store(fake)


async def test_what_is_no_operation_or_names_no_letter_changes_nothing(world: World) -> None:
    lane, _, events, ident = await with_a_letter(world, counting(world.name))
    good = operation(world, LetterCommand.DISCARD, ident)
    stray = good._replace(partition=1 - good.partition)
    missing = operation(world, REPLAY, ident[:-6] + "AAAAAA")
    await world.post(good._replace(value=b"{"), good._replace(headers=[]), good._replace(value=None), stray)
    await operated(world, lane, missing)
    assert (await letters(world))[0].history == []
    await operated(world, lane, operation(world, LetterCommand.EDIT, ident, value=b'{"k":"a","i":7}'))
    (letter,) = await letters(world)
    assert letter.value == events[1].value
    assert letter.history[-1].result.startswith("refused: editing is not enabled")
    await operated(world, lane, good)
    assert (await letters(world))[0].state is LetterState.DISCARDED
    assert lane.lane.reopened == 0
    await lane.stop()
    await check_store(world)


@pytest.mark.slow("a thousand letters")
async def test_many_letters_expire_in_bounded_steps_and_all_of_them(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), **EXPIRING, max_backlog=2000)
    lane, *_ = await gives_up(fake, work, range(300), *range(300))
    await quiet(fake, lane, dead_letters=300)
    await fake.clock.advance(ROUND)
    await quiet(fake, lane, expired_letters=300)
    assert await letters(fake) == []
    assert lane.lane.store is not None
    assert list(lane.lane.store.scan(DEAD_LETTERS)) == []
    await fake.clock.advance(HOUSEKEEPING + 1)
    assert list(lane.lane.store.scan(DEAD_LETTERS_BY_AGE)) == []
