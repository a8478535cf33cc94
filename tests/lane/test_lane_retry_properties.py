"""Whatever fails, expires, crashes or is fenced, in whatever order: each message is handled once or is a dead
letter, and those of an ordering key in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from lane_checker import check, counts, dead_letters
from lane_failing import expiring, waiting
from lane_workloads import Workload, counting
from test_lane_properties import KEYS, Lanes

from streams.errors import PermanentError, TransientError
from streams.policy.breaker import BreakerPolicy
from streams.policy.retry import RetryPolicy
from tests.effort import examples

#: How a message fares: so many failures before it succeeds, or a permanent one at last; of use for so many
#: seconds; and how long each attempt takes, where the handler is async.
FARES = st.tuples(
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([None, None, 1.0]),
    st.sampled_from([0.0, 0.0, 0.4, 1.5]),
)


class RetryingLanes(Lanes):
    """The model is a plan: how often each handler fails for each message, and whether it ever succeeds."""

    lane_options: ClassVar[dict[str, Any]] = {
        "retry": RetryPolicy(immediate=1, delays=(0.5, 2.0)),
        "breaker": BreakerPolicy(minimum=8, window=5.0, open_for=1.0, max_open_for=4.0, probes=2),
    }

    def __init__(self) -> None:
        super().__init__()
        self.fails: Counter[tuple[str, str, int]] = Counter()
        self.dead: set[tuple[str, str]] = set()
        self.may_expire: set[str] = set()
        self.seconds: dict[tuple[str, int], float] = {}
        self.work.hooks.before = lambda event: self.fare("count", event)
        self.work.hooks.before_tally = lambda event: self.fare("tally", event)

    def fare(self, handler: str, event: Any) -> None:
        which = (handler, event.k, event.i)
        if self.fails[which]:
            self.fails[which] -= 1
            raise TransientError(f"{which} is not ready")
        if (handler, f"{event.k}-{event.i}") in self.dead:
            raise PermanentError(f"{which} will never do")

    def order_of(self, i: int) -> str:
        """What messages are ordered by within their key."""
        return ""

    @rule(
        key=KEYS, handler=st.sampled_from(["count", "tally"]), fares=st.lists(FARES, min_size=1, max_size=6)
    )
    def produce_what_fails(
        self, key: str, handler: str, fares: list[tuple[int, bool, float | None, float]]
    ) -> None:
        for failures, dies, of_use, seconds in fares:
            i = len(self.posts)
            post = self.world.event(self.work, key, i)
            self.fails[handler, key, i] = failures
            self.seconds[key, i] = seconds
            if dies:
                self.dead.add((handler, f"{key}-{i}"))
            if of_use is not None:
                self.may_expire.add(f"{key}-{i}")
                post = expiring(post, self.world.clock.now() + of_use)
            self.posts[f"{key}-{i}"] = post
            self.run(self.world.post(post))

    async def until_done(self) -> None:
        await super().until_done()
        for _ in range(900):
            if not await waiting(self.world):
                break
            await self.world.clock.advance(1.0)
        else:
            raise AssertionError("some wait for ever")
        await super().until_done()

    async def check(self) -> None:
        world, work = self.world, self.work
        letters = [dict(letter.headers) for letter in await dead_letters(world, work.source)]
        found = [(h["dlq-handler"].decode().partition(".")[2], h["ce_id"].decode()) for h in letters]
        buried = set(found)
        assert len(buried) == len(found)
        assert buried >= {which for which in self.dead if which[1] not in self.may_expire}
        assert {message_id for _, message_id in buried - self.dead} <= self.may_expire
        counted = [post for message_id, post in self.posts.items() if ("count", message_id) not in buried]
        await check(world, work, counted)
        wanted = Counter(id_.partition("-")[0] for id_ in self.posts if ("tally", id_) not in buried)
        assert await counts(world, "tallies") == dict(wanted)
        orders: dict[tuple[bytes, str], list[int]] = {}
        for record in await world.records(work.output):
            i = json.loads(record.value or b"")["i"]
            orders.setdefault((record.key or b"", self.order_of(i)), []).append(i)
        for which, order in orders.items():
            assert order == sorted(order), which
        assert not await waiting(world)


class AsyncRetryingLanes(RetryingLanes):
    """The first handler is async, and takes its time: messages come while a head is under way."""

    def workload(self) -> Workload:
        return counting(self.world.name, tallied=True, settled=True, ask=self.ask)

    async def ask(self, key: str, i: int) -> None:
        await asyncio.sleep(0)
        if seconds := self.seconds.get((key, i), 0.0):
            await self.world.clock.sleep(seconds)


class FinerRetryingLanes(AsyncRetryingLanes):
    """And it orders by less than the key: several queues of a key, one async handler at a time."""

    def workload(self) -> Workload:
        return counting(
            self.world.name,
            tallied=True,
            settled=True,
            ask=self.ask,
            order_by=lambda event: self.order_of(event.i),
        )

    def order_of(self, i: int) -> str:
        return str(i % 3)


for _machine in (RetryingLanes, AsyncRetryingLanes, FinerRetryingLanes):
    _machine.TestCase.settings = settings(
        max_examples=examples(60),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestRetryingLanes = RetryingLanes.TestCase
TestAsyncRetryingLanes = AsyncRetryingLanes.TestCase
TestFinerRetryingLanes = FinerRetryingLanes.TestCase
