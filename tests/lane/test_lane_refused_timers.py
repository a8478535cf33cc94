"""A timer whose message the broker refuses is put off, and said; its lane goes on."""

import json
from typing import Any

import pytest
from lane_checker import check_positions, check_store, counts
from lane_hosts import host_of, opened
from lane_scenes import post
from lane_workloads import reminding
from lane_worlds import FakeWorld, Post
from structlog.testing import capture_logs

from streams.control.overview.health import refused_timers
from streams.engine.waiting.timers import FIRST_PAUSE

LARGE = "x" * 5_000
Fatal = list[BaseException]


@pytest.mark.parametrize("max_batch", [1, 50])
async def test_timer_over_a_lowered_limit_waits_alone(fake: FakeWorld, fatal: Fatal, max_batch: int) -> None:
    work = reminding(fake.name)
    await fake.start(work, max_batch=max_batch)

    def asking(key: str, i: int, name: str) -> Post:
        return post(fake, work.asked(k=key, due=fake.clock.now() + 1.0, name=name), i)

    def rung() -> list[Any]:
        return list(fake.cluster.visible(work.rang.TOPIC))

    host = host_of(fake, fatal)
    host.assign({0}, set(), fake.app.sources)
    await opened(fake, host)
    lane = host.lanes[0]
    fake.cluster.limits[work.rang.TOPIC] = 2_000
    with capture_logs() as logs:
        await fake.post(asking("a", 1, LARGE), asking("a", 2, "small"), asking("b", 1, "small"))
        await fake.until(lambda: len(rung()) == 2 and not lane.backlog)
        await fake.post(asking("a", 3, "small"))
        await fake.until(lambda: len(rung()) == 3 and not lane.backlog)
        await fake.settled(work.rang.TOPIC)
    (said,) = [each for each in logs if each["event"] == "timer_refused"]
    assert (said["key"], said["topic"]) == ("a", work.rang.TOPIC)
    assert "2000" in said["error"]
    (warning,) = refused_timers([lane])
    assert "2000" in warning
    assert (host.stuck(), fatal, lane.trouble) == ([], [], "")
    assert await counts(fake, "rings") == {"a": 2, "b": 1}

    fake.cluster.limits[work.rang.TOPIC] = 20_000
    await fake.clock.advance(FIRST_PAUSE + 2)
    await fake.settled(work.rang.TOPIC)
    assert await counts(fake, "rings") == {"a": 3, "b": 1}  # nothing is lost, and it rings once
    assert refused_timers([lane]) == []
    late = next(
        dict(record.headers)
        for record in await fake.records(work.rang.TOPIC)
        if json.loads(record.value or b"")["name"] == LARGE
    )
    assert late["timer-due"] < late["ce_time"]
    await host.stop()
    await check_positions(fake, [work.asked.TOPIC, work.rang.TOPIC])
    await check_store(fake)
