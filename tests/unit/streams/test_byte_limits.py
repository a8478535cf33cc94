import asyncio
from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streams.model.claim_checks import OVERHEAD, BytesCache, BytesInFlight
from tests.effort import examples

pytestmark = pytest.mark.promise("bounded-memory")

LIMIT = 10
#: Of a cache: two that are not empty fit, or three empty ones.
CACHED = 3 * OVERHEAD + LIMIT - 1
SIZES = st.sampled_from([0, 1, LIMIT, OVERHEAD, CACHED - OVERHEAD, CACHED])


class Holder:
    """A task that holds bytes until it is told to end."""

    def __init__(self, bound: BytesInFlight, size: int) -> None:
        self.size = size
        self.holds = False
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._hold(bound))

    async def _hold(self, bound: BytesInFlight) -> None:
        async with bound.of(self.size):
            self.holds = True
            try:
                await self.end.wait()
            finally:
                self.holds = False


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class InFlight(RuleBasedStateMachine):
    """Against a list of who came when: the longest prefix of it that fits holds, nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.bound = BytesInFlight(LIMIT)
        self.holders: list[Holder] = []
        self.waiting: list[Holder] = []

    def run(self, *starting: int, ended: Holder | None = None, cancelled: Holder | None = None) -> None:
        async def step() -> None:
            self.waiting += [Holder(self.bound, size) for size in starting]
            if ended is not None:
                ended.end.set()
            if cancelled is not None:
                cancelled.task.cancel()
            await settle()

        self.runner.run(step())
        self.holders = [each for each in self.holders if each not in (ended, cancelled)]
        self.waiting = [each for each in self.waiting if each is not cancelled]
        while self.waiting and self.used() + min(self.waiting[0].size, LIMIT) <= LIMIT:
            self.holders.append(self.waiting.pop(0))

    def used(self) -> int:
        return sum(min(each.size, LIMIT) for each in self.holders)

    @rule(sizes=st.lists(st.integers(0, LIMIT + 5), min_size=1, max_size=4))
    def come(self, sizes: list[int]) -> None:
        self.run(*sizes)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.run(ended=data.draw(st.sampled_from(self.holders)))

    @precondition(lambda self: self.holders or self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.run(cancelled=data.draw(st.sampled_from(self.holders + self.waiting)))

    @precondition(lambda self: self.holders and self.waiting)
    @rule(data=st.data())
    def end_while_one_that_waits_is_cancelled(self, data: st.DataObject) -> None:
        self.run(
            ended=data.draw(st.sampled_from(self.holders)), cancelled=data.draw(st.sampled_from(self.waiting))
        )

    @invariant()
    def exactly_those_hold_whose_turn_it_is(self) -> None:
        assert all(each.holds for each in self.holders)
        assert not any(each.holds for each in self.waiting)
        assert self.bound.held == self.used() <= LIMIT
        assert self.bound.waiters == len(self.waiting)

    def teardown(self) -> None:
        while self.holders:
            self.run(ended=self.holders[0])
        assert (self.waiting, self.bound.held) == ([], 0), "someone would wait for ever"
        self.runner.close()


TestInFlight = InFlight.TestCase
TestInFlight.settings = settings(max_examples=examples(60), stateful_step_count=25)


async def test_a_turn_is_passed_on_when_its_task_is_cancelled() -> None:
    bound = BytesInFlight(LIMIT)
    first, second, third = (Holder(bound, LIMIT) for _ in range(3))
    await settle()
    first.end.set()
    await first.task  # its release has given the turn to the second, which has not run yet
    second.task.cancel()
    await settle()
    assert (second.holds, third.holds) == (False, True)
    third.end.set()
    await third.task
    assert bound.held == 0


class Cache(RuleBasedStateMachine):
    """Against a list in order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BytesCache(CACHED)
        self.model: OrderedDict[str, bytes] = OrderedDict()

    @rule(key=st.sampled_from("abcdef"), data=SIZES.map(bytes))
    def put(self, key: str, data: bytes) -> None:
        self.cache.put(key, data)
        self.model.pop(key, None)
        if len(data) + OVERHEAD <= CACHED:
            self.model[key] = data
        while self.taken > CACHED:
            self.model.popitem(last=False)

    @property
    def taken(self) -> int:
        return sum(len(data) + OVERHEAD for data in self.model.values())

    @rule(key=st.sampled_from("abcdef"))
    def get(self, key: str) -> None:
        assert self.cache.get(key) == self.model.get(key)
        if key in self.model:
            self.model.move_to_end(key)

    @invariant()
    def it_keeps_within_its_limit_what_was_used_last(self) -> None:
        assert self.cache.currsize == self.taken <= CACHED
        assert len(self.cache) == len(self.model)


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=examples(60))


async def test_an_error_gives_the_bytes_back() -> None:
    bound = BytesInFlight(LIMIT)

    async def fail() -> None:
        async with bound.of(4):
            assert bound.held == 4
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await fail()
    assert bound.held == 0
