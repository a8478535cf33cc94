"""Async handlers overlap by key and wait for nobody else; what is finished is committed in order."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_scenes import handled, opened, some, stopped
from lane_workloads import Workload, asking
from lane_worlds import Post, Running, World

from streams.errors import PermanentError
from streams.ports import TP


class Outside:
    """What handlers ask: each question waits at a gate of its own until it is let through."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.waiting: set[tuple[str, int]] = set()
        self.most = 0
        self.errors: dict[tuple[str, int], Exception] = {}
        self._gates: defaultdict[tuple[str, int], asyncio.Event] = defaultdict(asyncio.Event)
        self._open = False

    async def ask(self, key: str, i: int) -> None:
        self.asked.append((key, i))
        self.waiting.add((key, i))
        self.most = max(self.most, len(self.waiting))
        try:
            if not self._open:
                await self._gates[key, i].wait()
        finally:
            self.waiting.discard((key, i))
        if (key, i) in self.errors:
            raise self.errors.pop((key, i))

    def let(self, *keys: str) -> None:
        """Through go the first messages of these keys."""
        for key in keys:
            self._gates[key, 0].set()

    def let_all(self) -> None:
        self._open = True
        for gate in self._gates.values():
            gate.set()


@pytest.fixture
def outside() -> Outside:
    return Outside()


async def under_way(
    world: World, outside: Outside, keys: str = "abcd", numbers: range = range(1), **options: Any
) -> tuple[Workload, list[Post], Running]:
    """A lane in which a message of each key is under way; all that was sent."""
    work = asking(world.name, outside.ask)
    await world.start(work, **options)
    events = some(world, work, numbers, keys)
    await world.post(*events)
    lane = world.lane()
    await world.until(lambda: len(outside.waiting) == len(keys))
    return work, events, lane


async def test_handlers_of_different_keys_overlap_and_duplicates_are_dropped(
    world: World, outside: Outside
) -> None:
    work, events, lane = await under_way(world, outside, numbers=range(3))
    assert outside.waiting == {(key, 0) for key in "abcd"}
    await world.post(events[0], events[0])
    await world.until(lambda: lane.lane.counters.duplicates == 2)
    at = TP(work.source, events[0].partition)
    assert (await world.cluster.committed(world.name, [at])).get(at, 0) == 0
    outside.let("b")
    await world.until(lambda: ("b", 1) in outside.waiting)
    assert ("a", 1) not in outside.asked
    outside.let_all()
    await stopped(world, lane, work.source)
    await check(world, work, events)
    await check_store(world)
    for key in "abcd":
        assert [i for k, i in outside.asked if k == key] == [0, 1, 2]


async def test_with_nothing_allowed_ahead_all_of_a_partition_wait(world: World, outside: Outside) -> None:
    work, _, lane = await under_way(world, outside, partitions=1, max_ahead=0)
    outside.let("a", "c", "d")
    await world.until(lambda: lane.handled == 3)
    await world.until_at({TP(work.source, 0): 1})
    assert lane.lane.backlog == 3
    outside.let("b")
    await stopped(world, lane, work.source)


@pytest.mark.promise("slow-key")
@pytest.mark.parametrize(
    "at", ["begun", pytest.param("sent", marks=pytest.mark.landing), "committed", "applied"]
)
async def test_a_killed_lane_runs_what_was_under_way_again(world: World, outside: Outside, at: str) -> None:
    """`a` and `c` are committed while `b` is under way; then the lane is killed in the commit of `d`."""
    work, events, lane = await under_way(world, outside, numbers=range(2), partitions=1)
    outside.let("a", "c")
    await world.until(lambda: lane.lane.backlog == 6)
    world.faults.kill_at(at, nth=world.faults.reached[at] + 1)
    outside.let("d")
    await lane.killed()
    assert world.faults.pending == []
    outside.let_all()
    lane = await world.open()
    await stopped(world, lane, work.source)
    assert outside.asked.count(("b", 0)) == 2
    assert outside.asked.count(("a", 0)) == outside.asked.count(("c", 0)) == 1
    assert outside.asked.count(("d", 0)) == (1 if at in ("committed", "applied") else 2)
    await check(world, work, events)
    await check_store(world)


@pytest.mark.promise("slow-key")
@pytest.mark.parametrize("slow", "ab")
async def test_another_owner_runs_what_was_under_way_and_no_more(
    world: World, outside: Outside, slow: str
) -> None:
    """The next owner has another disk: all that it knows is in the changelogs."""
    work, events, lane = await under_way(world, outside, partitions=1)
    outside.let(*(others := set("abcd") - {slow}))
    await world.until(lambda: lane.handled == 3 and lane.lane.backlog == 1)
    await world.until_at({TP(work.source, 0): "ab".index(slow)})
    assert len(await world.records(work.output)) == 3, "committed before slower keys, no position is past one"
    await lane.stop()
    assert outside.waiting == set(), "it lets go of what is under way"
    world.machine.destroy(0)
    lane = await world.open()
    await world.until(lambda: outside.asked.count((slow, 0)) == 2)
    outside.let_all()
    await stopped(world, lane, work.source)
    assert [outside.asked.count((key, 0)) for key in others] == [1, 1, 1]
    await check(world, work, events)
    await check_store(world)


async def test_no_more_keys_than_allowed_are_under_way_at_once(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work, max_in_flight=3)
    events = [world.event(work, f"k{n}", i) for i in range(2) for n in range(20)]
    lane = await opened(world, *events)
    await world.until(lambda: len(outside.waiting) == 3)
    outside.let_all()
    await stopped(world, lane, work.source)
    assert outside.most == 3
    await check(world, work, events)


async def test_an_async_handler_may_give_a_message_up(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work)
    events = some(world, work, range(1), "abc")
    outside.errors["b", 0] = PermanentError("never")
    outside.let_all()
    await handled(world, work, [*events, *events])
    assert await counts(world) == {"a": 1, "c": 1}
    (letter,) = await dead_letters(world, work.source)
    assert letter.key == b"b"
    assert outside.asked.count(("b", 0)) == 1
