"""Replays that wait for a handler that a later version has no more, or not for their topic, are discarded."""

from typing import Any

import pytest
from lane_checker import check_store, counts
from lane_desk import Broken, letters, letters_by_id, operated, operation
from lane_failing import HOLDING, nothing_waits, started
from lane_pausing import asked
from lane_workloads import MADE_NEWER, Workload, avro_codecs, deployed
from lane_worlds import World
from test_lane_desk import REPLAY, quiet
from test_lane_schemas import newer

from streams.engine.waiting.dead_letters.row import LetterState
from streams.model.application import Application
from streams.model.codecs import Schemas
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise("discarded-replays", "with crashes at any point")

NOT_HOLDING = RetryPolicy(immediate=0, delays=())
#: Of the event that waits behind the replays.
LAST = 20


def parity(event: Any) -> str:
    """What the handler orders by within a key: its queues are not those of the key."""
    return str(event.i % 2)


async def with_replays(world: World, *numbers: int, retry: RetryPolicy = NOT_HOLDING) -> Workload:
    """The lane has stopped. The handler is paused, and replays of these events wait for it, in this order;
    behind them another event of their ordering key, which has come since. Events below 10 are of a topic that
    a later version's handler takes no more.
    """
    work = deployed(world.name, 1, 2, tallied=(1,), order_by=parity)
    await started(world, work, retry=retry)
    work.hooks.before = Broken(*(("a", number) for number in numbers))
    lane = await world.open()
    for n, number in enumerate(numbers, start=1):
        await world.post(event_of(world, number))
        await quiet(world, lane, dead_letters=n)
    work.hooks.before = lambda _: None
    await asked(world, HandlerCommand.PAUSE)
    for number in numbers:
        await operated(world, lane, operation(world, REPLAY, await letter_of(world, number)))
    await world.post(event_of(world, LAST))
    await world.settled(*work.wiring.routes)
    await lane.stop()
    work.hooks.calls.clear()
    return work


def event_of(world: World, number: int) -> Any:
    return world.event(deployed(world.name, 1 if number < 10 else 2), "a", number)


async def letter_of(world: World, number: int) -> str:
    wanted = dict(event_of(world, number).headers)["ce_id"]
    found = (await letters_by_id(world)).items()
    (ident,) = [ident for ident, letter in found if dict(letter.headers)["ce_id"] == wanted]
    return ident


def later(world: World, *versions: int) -> tuple[Workload, Application]:
    """A version whose handler takes these topics; without one it is not there any more."""
    work = deployed(world.name, *versions, tallied=(1,), order_by=parity)
    return work, world.cut_into(work, lanes=1)


async def discard(world: World, lane: Any, number: int) -> None:
    await operated(world, lane, operation(world, LetterCommand.DISCARD, await letter_of(world, number)))


async def all_done(world: World, work: Workload, wanted: list[int]) -> None:
    """The version that has the handler goes on: what was discarded is not tried; the rest is, in order."""
    lane = await world.open()
    await asked(world, HandlerCommand.RESUME, operation_id="at the end")
    await world.until(lambda: len(work.hooks.calls) >= len(wanted) and not lane.lane.backlog)
    await lane.stop()
    assert [number for _, number in work.hooks.calls] == wanted
    await nothing_waits(world)
    await check_store(world)


async def tried_in_vain(world: World, app: Application) -> Any:
    """A lane of a later version, whose resumed handler has come upon a replay that is none of its own."""
    lane = await world.open(app=app)
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: len(lane.lane.gates["bench.count"].unroutable) == 1)
    return lane


async def goes_on(world: World, lane: Any, after: Workload, number: int) -> None:
    await world.until(lambda: after.hooks.calls == [("a", number)] and not lane.lane.backlog)
    await lane.stop()
    await nothing_waits(world)


@pytest.mark.parametrize("retry", [NOT_HOLDING, HOLDING], ids=["", "holding"])
@pytest.mark.parametrize("versions", [(2,), ()], ids=["of another topic", "not there"])
async def test_a_discarded_replay_leaves_what_waits_behind_it(
    world: World, versions: tuple[int, ...], retry: RetryPolicy
) -> None:
    work = await with_replays(world, 0, retry=retry)
    after, app = later(world, *versions)
    lane = await world.open(app=app)
    await discard(world, lane, 0)
    if versions:
        await asked(world, HandlerCommand.RESUME)
        await world.until(lambda: after.hooks.calls == [("a", LAST)] and not lane.lane.backlog)
    await lane.stop()
    (letter,) = await letters(world)
    assert (letter.state, letter.queue) == (LetterState.DISCARDED, b"")
    assert letter.history[-1].result == "discarded"
    await all_done(world, work, [] if versions else [LAST])
    assert await counts(world) == {"a": 1}


async def test_what_waits_behind_a_replay_tried_in_vain_goes_on(world: World) -> None:
    await with_replays(world, 0)
    after, app = later(world, 2)
    lane = await tried_in_vain(world, app)
    await discard(world, lane, 0)
    await goes_on(world, lane, after, LAST)


@pytest.mark.parametrize("order", [(2, 0), (0, 2)], ids=["the later one first", "the earlier one first"])
async def test_others_keep_their_order_around_discarded_replays(world: World, order: tuple[int, int]) -> None:
    await with_replays(world, 0, 10, 2, 12)
    after, app = later(world, 2)
    lane = await world.open(app=app)
    for number in order:
        await discard(world, lane, number)
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: len(after.hooks.calls) == 3 and not lane.lane.backlog)
    await lane.stop()
    assert [number for _, number in after.hooks.calls] == [10, 12, LAST]
    await nothing_waits(world)
    await check_store(world)
    assert [letter.state for letter in await letters(world)] == [LetterState.DISCARDED] * 2


async def test_what_waits_for_its_schema_behind_a_replay_is_handled(world: World) -> None:
    schemas = Schemas()
    work, after = deployed(world.name, 1, 2), deployed(world.name, 2)
    await started(world, work, retry=NOT_HOLDING, codecs=avro_codecs(schemas))
    work.hooks.before = Broken(("a", 0))
    await world.post(world.event(work, "a", 0), newer(world.event(after, "a", 1), "a", 1))
    lane = await world.open()
    await quiet(world, lane, dead_letters=1)
    await world.settled(*work.wiring.routes)
    await asked(world, HandlerCommand.PAUSE)
    (ident,) = await letters_by_id(world)
    await operated(world, lane, operation(world, REPLAY, ident))
    await lane.stop()
    lane = await tried_in_vain(world, world.cut_into(after, lanes=1, codecs=avro_codecs(schemas)))
    schemas.add(MADE_NEWER)
    unread = lane.lane.gates["bench.count"].unread
    await world.until(lambda: not unread.awaited())  # it was looked for, while the replay came before it
    await operated(world, lane, operation(world, LetterCommand.DISCARD, ident))
    await goes_on(world, lane, after, 1)


async def test_a_replay_whose_handler_is_there_is_not_discarded(world: World) -> None:
    work = await with_replays(world, 0)
    lane = await world.open()
    await discard(world, lane, 0)
    await lane.stop()
    (letter,) = await letters(world)
    assert letter.state is LetterState.REPLAYING
    assert letter.history[-1].result == "refused: it is being replayed"
    await all_done(world, work, [0, LAST])
    assert await letters(world) == []


async def test_a_discarded_replay_is_restored_and_taken_anew(world: World) -> None:
    work = await with_replays(world, 0)
    lane = await world.open(app=later(world, 2)[1])
    await discard(world, lane, 0)
    ident = await letter_of(world, 0)
    await operated(world, lane, operation(world, LetterCommand.RESTORE, ident))
    await operated(world, lane, operation(world, REPLAY, ident, operation_id="again"))
    await lane.stop()
    assert await letters(world) == []
    assert await counts(world, "tallies") == {"a": 1}
    await all_done(world, work, [LAST])
