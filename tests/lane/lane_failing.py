"""What tests of failing handlers share: how they fail, how they are retried, and how such a test ends."""

from collections.abc import Sequence
from typing import Any

from lane_checker import check, check_store, dead_letters, latest
from lane_workloads import Workload
from lane_worlds import FakeWorld, Post, World

from streams.model.envelope import rfc3339
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy

#: Two tries more at once, three later.
QUICK = RetryPolicy(delays=(0.3, 0.5, 0.7))
#: What never opens in a test of something else.
PATIENT = BreakerPolicy(minimum=10_000)
#: None more at once, one later.
LATER = RetryPolicy(immediate=0, delays=(0.3,))
#: Alike, and later messages of the ordering key wait behind a dead letter.
HOLDING = RetryPolicy(immediate=0, delays=(0.3,), hold_while_dead=True)


class Failing:
    """Fails for chosen events so many times, and remembers when each was tried."""

    def __init__(self, world: World, times: dict[tuple[str, int], int], error: Exception) -> None:
        self.tries: list[tuple[str, int, float]] = []
        self._world = world
        self._times = dict(times)
        self._error = error

    def __call__(self, event: Any) -> None:
        which = (event.k, event.i)
        self.tries.append((*which, self._world.clock.now()))
        if self._times.get(which, 0):
            self._times[which] -= 1
            raise self._error

    def of(self, key: str, i: int) -> list[float]:
        return [at for k, number, at in self.tries if (k, number) == (key, i)]


async def started(world: World, work: Workload, **lane_options: Any) -> None:
    """Each late try counts, also while nothing else of the handler succeeds, unless told otherwise."""
    await world.start(work, **{"retry": QUICK, "breaker": PATIENT, "outage_patience": 0.0, **lane_options})


async def letters_of(world: World, work: Workload) -> list[dict[str, bytes]]:
    return [dict(letter.headers) for letter in await dead_letters(world, work.source)]


async def waiting(world: World) -> list[bytes]:
    return [key for _, key in await latest(world, "lane") if key[:1] in (b"q", b"w")]


async def nothing_waits(world: World) -> None:
    assert await waiting(world) == []


async def pass_time(world: FakeWorld, seconds: float) -> None:
    end = world.clock.now() + seconds
    while world.clock.now() < end:
        await world.clock.advance(0.05)


def with_header(post: Post, name: str, value: bytes) -> Post:
    return post._replace(headers=[*post.headers, (name, value)])


def expiring(post: Post, at: float) -> Post:
    """Of no use after `at`, epoch seconds."""
    return with_header(post, "ce_expirytime", rfc3339(at).encode())


async def all_count(world: World, lane: Any, n: int) -> None:
    await world.until(lambda: lane.lane.counters.handled >= n and not lane.lane.backlog)


async def settled(world: World, work: Workload, lane: Any) -> None:
    """All that has come was tried, or waits, and it is committed."""
    await world.settled(work.source)
    await world.until(lambda: not lane.lane.backlog)


async def finish(world: World, work: Workload, lane: Any, events: Sequence[Post]) -> None:
    await settled(world, work, lane)
    await lane.stop()
    await check(world, work, events)
    await check_store(world)
    await nothing_waits(world)
