"""What a lane measures and logs of itself and of its handlers."""

import asyncio
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
import structlog
from lane_checker import dead_letters
from lane_failing import all_count, finish
from lane_scenes import failing_counter, finished, opened, retried_asker, retrying_counter, some, stopped
from lane_worlds import FakeWorld, World
from structlog.testing import LogCapture

from streams.engine.staging.measures import Distribution, HandlerMeasures
from streams.errors import PermanentError
from streams.logs import HANDLED, add_ids


def test_a_distribution_counts_values_at_and_beyond_bounds() -> None:
    found = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        found.add(value)
    assert (found.counts, found.total) == ([2, 2, 1], 12.0)


async def test_a_lane_measures_its_transactions_and_its_recovery(world: World) -> None:
    work = await retrying_counter(world)
    events = some(world, work, range(5), "abc")
    lane = await opened(world, *events)
    await all_count(world, lane, len(events))
    await world.until(lambda: lane.lane.measures.lag == 0)
    measures = lane.lane.measures
    assert measures.intake.taken_by_topic.total() == len(events)
    assert measures.intake.not_taken.total() == 0
    assert measures.batches.total == len(events)
    assert sum(measures.batches.counts) == sum(measures.commits.counts) > 0
    assert measures.commits.total > 0
    assert measures.oldest_age(world.clock.now()) == 0
    await finish(world, work, lane, events)
    seen: list[int] = []

    class Watching:
        async def reach(self, point: str) -> None:
            if point == "recovering":
                seen.append(second.lane.measures.to_recover)

    second = world.lane(stores=world.stores(), faults=Watching())
    await world.until(lambda: second.lane.state == "open")
    measures = second.lane.measures
    assert seen[0] == measures.recovery[0] > measures.to_recover == 0


async def test_a_lane_knows_how_far_it_is_behind(fake: FakeWorld) -> None:
    answered, asked = asyncio.Event(), []

    async def ask(key: str, i: int) -> None:
        asked.append((key, i))
        await answered.wait()

    work = await retried_asker(fake, ask, max_in_flight=2)
    events = [fake.event(work, f"k{n}", 0) for n in range(10)]
    lane = await opened(fake, *events)
    measures = lane.lane.measures
    await fake.until(lambda: len(asked) == 2)
    await fake.passes(5, real=0)
    assert measures.lag == 10
    assert [gate.measures for gate in lane.lane.gates.values()] == [None], "none were given"
    assert measures.intake.taken_by_topic.total() + measures.intake.not_taken.total() == 10
    assert 5 <= measures.oldest_age(fake.clock.now()) < 60
    answered.set()
    await finish(fake, work, lane, events)
    assert measures.batches.total == 10


async def test_attempts_are_measured_by_outcome_and_retries_by_tier(world: World) -> None:
    work, _ = await failing_counter(world, {("a", 0): 4})
    events = [world.event(work, "a", 0), world.event(work, "b", 0)]
    await world.post(*events)
    measured = HandlerMeasures()
    lane = await world.open(handlers={"bench.count": measured})
    await finished(world, work, lane, events, lambda: sum(measured.succeeded.counts) == 2)
    assert sum(measured.succeeded.counts) == 2
    assert sum(measured.failed.counts) == 4
    assert measured.succeeded.total > 0 < measured.failed.total
    assert dict(measured.retries) == {0: 2, 1: 1, 2: 1}
    assert dict(measured.failures) == {("transient", "TryAgain"): 2, ("transient", "Later"): 2}


log = structlog.get_logger(__name__)


class Captured:
    """Lines as they are written, with the ids that are added to them."""

    def __enter__(self) -> list[Any]:
        capture = LogCapture()
        self._processors = structlog.get_config()["processors"]
        processors = structlog.get_config()["processors"]
        self._before = list(processors)
        processors[:] = [add_ids, capture]
        return capture.entries

    def __exit__(self, *exception: object) -> None:
        self._processors[:] = self._before


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with Captured() as lines:
        yield lines


def of(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def test_only_what_a_handler_logs_names_its_message(world: World, lines: list[Any]) -> None:
    work = await retrying_counter(world)
    work.hooks.before = lambda event: log.info("seen", i=event.i)
    events = some(world, work, range(2), "ab")
    lane = await opened(world, *events)
    await all_count(world, lane, len(events))
    await finish(world, work, lane, events)
    seen = sorted((line["key"], line["i"], line["message_id"]) for line in of(lines, "seen"))
    assert seen == [("a", 0, "a-0"), ("a", 1, "a-1"), ("b", 0, "b-0"), ("b", 1, "b-1")]
    assert {line["correlation_id"] for line in of(lines, "seen")} == {"a-0", "a-1", "b-0", "b-1"}
    assert "message_id" not in of(lines, "lane_opened")[0]
    assert HANDLED.get() is None


async def test_async_handlers_side_by_side_each_name_their_message(world: World, lines: list[Any]) -> None:
    both, asked = asyncio.Event(), []

    async def ask(key: str, i: int) -> None:
        asked.append(key)
        if len(asked) == 2:
            both.set()
        await both.wait()
        await asyncio.to_thread(time.sleep, 0.01)  # measures are of real time
        log.info("seen", asked=key)

    work = await retried_asker(world, ask)
    await world.post(*(events := [world.event(work, key, 0) for key in "ab"]))
    lane = await world.open(handlers={next(iter(world.app.handlers)): (measured := HandlerMeasures())})
    await all_count(world, lane, len(events))
    await finish(world, work, lane, events)
    assert sum(measured.succeeded.counts) == 2
    assert measured.succeeded.total >= 2 * 0.01, "with what it waits for"
    assert sorted((line["asked"], line["key"]) for line in of(lines, "seen")) == [("a", "a"), ("b", "b")]


async def test_a_failure_and_a_dead_letter_name_their_message(world: World, lines: list[Any]) -> None:
    work, _ = await failing_counter(world, {("a", 0): 9}, error=PermanentError("no such card"))
    whole = world.event(work, "b", 0)
    lane = await opened(world, world.event(work, "a", 0), whole._replace(headers=[]))
    await world.until(lambda: len(of(lines, "dead_letter")) == 2)
    await stopped(world, lane, work.source)
    (failed,) = of(lines, "handler_failed")
    letter, unread = sorted(of(lines, "dead_letter"), key=itemgetter("key"))
    for line in (failed, letter):
        assert (line["message_id"], line["correlation_id"], line["key"]) == ("a-0", "a-0", "a")
        assert line["handler"] == "bench.count"
    assert letter["error"] == "PermanentError: no such card"
    assert letter["topic"] == work.source
    assert (unread["handler"], unread["key"], unread["partition"]) == ("", "b", whole.partition)
    assert unread["error"].startswith("MissingHeader")
    assert "message_id" not in unread
    assert len(await dead_letters(world, work.source)) == 2
