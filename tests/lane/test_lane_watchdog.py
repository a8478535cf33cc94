"""The watchdog of a worker: it says by itself which lanes stand still, and what they stand at."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from lane_hosts import host_of, opened
from lane_pausing import some
from lane_scenes import counter
from lane_workloads import asking
from lane_worlds import FakeWorld, World
from structlog.testing import capture_logs

from streams.engine.life.state import LaneState
from streams.engine.life.watchdog import STUCK_AFTER, Watchdog
from streams.engine.way.measures import LaneMeasures
from streams.testing.clock import ManualClock

Logs = list[Any]


def of_watchdog(logs: Logs) -> Logs:
    return [line for line in logs if line["event"] in ("lane_stalled", "lane_goes_on")]


def stalls_of_two(logs: Logs) -> Logs:
    """Not those of a lane that took long to open."""
    return [line for line in logs if line["event"] == "lane_stalled" and line["backlog"] == 2]


@pytest.fixture
def hasty(monkeypatch) -> None:
    monkeypatch.setattr("streams.engine.life.watchdog.STUCK_AFTER", 0.5)
    monkeypatch.setattr("streams.engine.life.watchdog.LOOK_INTERVAL", 0.1)


@pytest.mark.usefixtures("hasty")
async def test_a_lane_whose_handler_hangs_is_logged_once(world: World, fatal: list[BaseException]) -> None:
    go_on = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await go_on.wait()

    work = asking(world.name, ask)
    await world.start(work)
    host = host_of(world, fatal)
    with capture_logs() as logs:
        host.assign({0}, set(), world.app.sources)
        await opened(world, host)
        await world.post(world.event(work, "a", 1), world.event(work, "b", 1))
        await world.until(lambda: stalls_of_two(logs))
        await world.passes(2, real=1)
        (stalled,) = stalls_of_two(logs)
        assert (stalled["lane"], stalled["state"]) == (0, "open")
        assert stalled["stands_at"] == "bench.count (2 keys)"
        assert stalled["seconds"] >= 0.5
        assert stalled["log_level"] == "error"
        assert host.stuck() == [host.lanes[0]]
        go_on.set()
        await world.until(lambda: of_watchdog(logs)[-1]["event"] == "lane_goes_on")
    assert host.stuck() == []
    assert fatal == []


async def test_lane_whose_transaction_hangs_stands_at_it(fake: FakeWorld, fatal: list[BaseException]) -> None:
    go_on = asyncio.Event()

    class Hanging:
        async def reach(self, point: str) -> None:
            if point == "sent":
                await go_on.wait()

    work = await counter(fake)
    host = host_of(fake, fatal, Hanging())
    with capture_logs() as logs:
        host.assign({0}, set(), fake.app.sources)
        await fake.post(*some(fake, work, range(1)))
        await fake.until(lambda: of_watchdog(logs))
    assert of_watchdog(logs)[0]["stands_at"] == "a transaction"
    go_on.set()
    await fake.settled(work.source)
    assert "watchdog" in {task.get_name() for task in asyncio.all_tasks()}
    await host.stop()
    await fake.until(lambda: "watchdog" not in {task.get_name() for task in asyncio.all_tasks()})
    assert fatal == []


class Opening:
    number, backlog, error, state = 0, 0, None, LaneState.OPENING

    def __init__(self) -> None:
        self.measures = LaneMeasures()
        self.gates: dict[str, SimpleNamespace] = {}
        self.last_progress = 0.0


def test_a_lane_that_recovers_does_not_stand_still() -> None:
    lane, clock = Opening(), ManualClock(STUCK_AFTER + 1)
    watchdog = Watchdog({0: lane}, clock)  # type: ignore[dict-item]
    with capture_logs() as logs:
        for left in (3000, 2000, 1000):
            lane.measures.recovering(left)
            watchdog.look()
        assert of_watchdog(logs) == []
        watchdog.look()
    assert [line["event"] for line in of_watchdog(logs)] == ["lane_stalled"]
