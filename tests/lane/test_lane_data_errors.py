"""Bad data is the fault of its message: it is a dead letter at once, and no circuit breaker counts it."""

from __future__ import annotations

from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_failing import finish, started
from lane_workloads import avro_codecs, counting, reminding
from lane_worlds import FakeWorld, World
from structlog.testing import capture_logs
from test_lane_timers import asking_for

from streams.errors import PermanentError, Undecodable
from streams.model.codecs import Schemas, json_without_schema
from streams.policy.breaker import BreakerPolicy, BreakerState

BREAKER = BreakerPolicy(minimum=5, open_for=1.0, max_open_for=1.0, probes=2)
#: A text that is no Unicode: no codec can write it.
NO_TEXT = "\ud800"


@pytest.mark.parametrize("how", ["avro", "json"])
@pytest.mark.parametrize("what", ["text", "passed"], ids=["row", "output"])
async def test_the_unencodable_is_a_dead_letter_and_opens_no_breaker(
    world: World, what: str, how: str
) -> None:
    work = counting(world.name)
    codecs = avro_codecs(Schemas()) if how == "avro" else json_without_schema
    await started(world, work, breaker=BREAKER, codecs=codecs)
    setattr(work.hooks, what, lambda event: NO_TEXT if event.i < 12 else "")
    bad = [world.event(work, "a", i) for i in range(12)]
    good = [world.event(work, "a", i) for i in range(12, 16)]
    await world.post(*bad, *good)
    lane = await world.open()
    await world.settled(work.source)
    assert lane.lane.gates["bench.count"].breaker.state is BreakerState.CLOSED
    await lane.stop()
    assert [i for _, i in work.hooks.calls] == list(range(16))
    assert lane.lane.reopened == 0
    letters = [dict(letter.headers) for letter in await dead_letters(world, work.source)]
    assert [each["dlq-error-type"] for each in letters] == [b"Unencodable"] * 12
    assert len(await world.records(work.output)) == 4
    if how == "json":
        await check(world, work, good)
    await check_store(world)


@pytest.mark.parametrize("due", [1e300, -5.0, 1e17])
async def test_a_timer_at_no_time_is_a_dead_letter(world: World, due: float) -> None:
    await started(world, work := reminding(world.name))
    await world.post(asking_for(world, work, 1, due), asking_for(world, work, 2, None))
    lane = await world.open()
    await world.settled(work.asked.TOPIC)
    await lane.stop()
    (letter,) = await dead_letters(world, work.asked.TOPIC)
    assert dict(letter.headers)["dlq-error-type"] == b"Unencodable"
    assert await counts(world, "asks") == {"a": 1}


async def test_answers_that_are_permanent_errors_open_no_breaker(world: World) -> None:
    """Who answers, if only that it cannot be, is there: such messages are no outage, however many."""

    def before(event: Any) -> None:
        if event.i < 12:
            raise PermanentError("404")

    await started(world, work := counting(world.name), breaker=BREAKER)
    work.hooks.before = before
    good = [world.event(work, "a", i) for i in range(12, 14)]
    await world.post(*(world.event(work, "a", i) for i in range(12)), *good)
    lane = await world.open()
    await world.settled(work.source)
    assert lane.lane.gates["bench.count"].breaker.state is BreakerState.CLOSED
    await lane.stop()
    assert [i for _, i in work.hooks.calls] == list(range(14))
    letters = [dict(letter.headers) for letter in await dead_letters(world, work.source)]
    assert [each["dlq-error-type"] for each in letters] == [b"PermanentError"] * 12
    await check(world, work, good)


async def test_bad_data_does_not_end_an_outage(fake: FakeWorld) -> None:
    world, down = fake, True

    def before(event: Any) -> None:
        if event.i == 9:
            raise Undecodable("what it carries is no reply")
        if down:
            raise ConnectionError("nobody there")

    await started(world, work := counting(world.name), breaker=BREAKER)
    work.hooks.before = before
    good = [world.event(work, f"k{n}", 0) for n in range(8)]
    bad = [world.event(work, f"b{n}", 9) for n in range(8)]
    await world.post(*good)
    lane = await world.open()
    await world.until(lambda: lane.lane.gates["bench.count"].breaker.state is BreakerState.OPEN)
    with capture_logs() as logs:
        await world.post(*bad)
        await world.until(lambda: lane.lane.counters.dead_letters == 8)
    changes = [entry["after"] for entry in logs if entry["event"] == "breaker_changed"]
    assert "half_open" in changes
    assert "closed" not in changes
    down = False
    await world.until(lambda: len(world.cluster.visible(work.output)) == 8)
    await finish(world, work, lane, good)
