"""A loop whose time passes only while everything waits; the pulse of a queue's worker ends when told to."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from streams.postgres.queue.lease_heartbeat import LeaseHeartbeat
from streams.testing.loop import LoopClock, SimulatedLoop
from tests.waiting import BOUND

DAY = 86_400.0


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=SimulatedLoop) as made:
        loop = made.get_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.simulate()
        yield made


def clock_of(runner: asyncio.Runner) -> LoopClock:
    loop = runner.get_loop()
    assert isinstance(loop, SimulatedLoop)
    return LoopClock(loop)


def test_days_of_sleep_cost_nothing(runner: asyncio.Runner) -> None:
    before = runner.get_loop().time()
    runner.run(asyncio.sleep(DAY))
    assert runner.get_loop().time() - before == DAY


def test_a_timeout_waits_for_whatever_can_go_on(runner: asyncio.Runner) -> None:
    async def slow() -> str:
        for _ in range(20):
            time.sleep(0.005)  # noqa: ASYNC251 - the machine is slow
            await asyncio.sleep(0)
        return "done"

    assert runner.run(asyncio.wait_for(slow(), timeout=0.001)) == "done"


def test_a_timeout_fires_where_nothing_goes_on(runner: asyncio.Runner) -> None:
    with pytest.raises(TimeoutError):
        runner.run(asyncio.wait_for(asyncio.Event().wait(), timeout=DAY))


def test_time_does_not_jump_while_a_thread_works(runner: asyncio.Runner) -> None:
    go_on = threading.Event()

    async def wait() -> bool:
        thread = asyncio.ensure_future(asyncio.to_thread(go_on.wait))
        asyncio.get_running_loop().call_later(0.01, go_on.set)
        return await asyncio.wait_for(thread, timeout=DAY)

    before = runner.get_loop().time()
    assert runner.run(wait())
    assert runner.get_loop().time() - before < DAY


def test_sockets_are_read_before_time_jumps(runner: asyncio.Runner) -> None:
    async def echo() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            try:
                return await asyncio.wait_for(reader.readline(), timeout=DAY)
            finally:
                writer.close()

    assert runner.run(echo()) == b"hello\n"


def test_it_is_an_ordinary_loop_until_told() -> None:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        before = time.monotonic()
        assert before <= runner.get_loop().time() <= time.monotonic()


def test_the_clock_goes_with_the_loop_and_wakes_in_order(runner: asyncio.Runner) -> None:
    clock, woken = clock_of(runner), list[tuple[float, str]]()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((clock.now(), name))

    async def sleep_all() -> None:
        await asyncio.gather(sleeper("late", 3.0), sleeper("early", 1.0), sleeper("between", 2.0))

    runner.run(sleep_all())
    assert [name for _, name in woken] == ["early", "between", "late"]
    assert [round(b - a, 3) for (a, _), (b, _) in pairwise(woken)] == [1.0, 1.0]


def test_moving_the_clock_wakes_sleepers_and_no_loop_timer(runner: asyncio.Runner) -> None:
    clock = clock_of(runner)

    async def move() -> tuple[bool, bool]:
        sleeper = asyncio.create_task(clock.sleep(DAY))
        timer = asyncio.create_task(asyncio.sleep(DAY))
        await asyncio.sleep(0)
        await clock.advance(2 * DAY)
        return sleeper.done(), timer.done()

    assert runner.run(move()) == (True, False)


def test_a_sleeper_is_not_late_when_the_clock_moves(runner: asyncio.Runner) -> None:
    clock = clock_of(runner)

    async def move() -> float:
        sleeper = asyncio.create_task(clock.sleep(10.0))
        await asyncio.sleep(0)
        await clock.advance(9.0)
        began = asyncio.get_running_loop().time()
        await sleeper
        return asyncio.get_running_loop().time() - began

    assert runner.run(move()) == pytest.approx(1.0, abs=1e-3)


class Connection:
    def __init__(self) -> None:
        self.ends: list[Callable[[Any], None]] = []

    def add_termination_listener(self, told: Callable[[Any], None]) -> None:
        self.ends.append(told)

    async def add_listener(self, *_: object) -> None:
        return

    async def execute(self, *_: object) -> None:
        return

    def terminate(self) -> None:
        return


@pytest.mark.parametrize("turns", range(5))
async def test_it_ends_when_its_connection_ends_at_the_same_moment(
    turns: int,
) -> None:
    made: list[Connection] = []

    async def connect(*_: object, **__: object) -> Connection:
        made.append(Connection())
        return made[-1]

    lives = asyncio.Event()
    pulse: Any = LeaseHeartbeat(connect, "q", 30.0, notified=lambda: None, back=lives.set)  # type: ignore[arg-type]
    task = asyncio.create_task(pulse.run())
    await lives.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    made[0].ends[0](made[0])
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=BOUND)
    assert task.cancelled()
