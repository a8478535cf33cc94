"""Thousands of dead letters in a second are seen."""

from typing import Any

from lane_scenes import counter
from lane_worlds import FakeWorld
from structlog.testing import capture_logs
from test_lane_desk_commands import Pages

from streams.dead_letters.bursts import MANY, TOLD_FOR, WITHIN, Bursts
from streams.errors import PermanentError
from streams.policy.assignment import Assignment
from streams.web.overview.overview import readiness


async def test_many_dead_letters_warn_with_handler_key_and_number(fake: FakeWorld) -> None:
    work = await counter(fake, max_backlog=4000)

    def before(event: Any) -> None:
        if event.i < 3000:
            raise PermanentError("there is a bug")

    work.hooks.before = before
    lane = await fake.open()
    pages = Pages(fake, lane.lane)
    pages.assignment = Assignment(owners={0: "here"}, topics=tuple(fake.app.sources))
    assert readiness(pages).status == "ready"  # type: ignore[arg-type]
    with capture_logs() as logs:
        await fake.post(*(fake.event(work, "hot" if i % 3 else f"k{i}", i) for i in range(3010)))
        await fake.settled(work.source)
    health = readiness(pages)  # type: ignore[arg-type]
    assert health.status == "degraded"
    (warning,) = health.warnings
    assert warning.startswith(
        "3000 messages became dead letters of bench.count within 1 s, 2000 of key 'hot'"
    )
    assert "PermanentError: see `steadfaust dlq groups`" in warning
    assert sum(each["event"] == "dead_letters_in_a_burst" for each in logs) == 1
    await fake.clock.sleep(TOLD_FOR + 1)
    assert readiness(pages).status == "ready"  # type: ignore[arg-type]


def test_a_few_dead_letters_now_and_then_warn_of_nothing() -> None:
    bursts = Bursts()
    for n in range(5 * MANY):
        bursts.add("a.b", b"k%d" % n, "ValueError", n * 2 * WITHIN / MANY)
    assert bursts.texts(5 * 2 * WITHIN) == []


def test_what_no_handler_has_seen_counts_as_well() -> None:
    bursts = Bursts()
    for n in range(MANY):
        bursts.add("", None if n % 2 else b"k", "Undecodable", 1.0)
    (text,) = bursts.texts(2.0)
    assert text.startswith(f"{MANY} messages became dead letters of no handler within 1 s, 50 of key ")
