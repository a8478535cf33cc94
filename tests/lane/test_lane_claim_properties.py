"""Whatever sizes, failing requests, crashes and fences come together: each parcel is handled once, in order
and byte for byte, and whatever a message refers to is there.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from lane_failing import PATIENT, waiting
from lane_parcels import BUCKET, THRESHOLD, Parcels
from lane_workloads import carrying
from test_lane_properties import KEYS, Lanes

from streams.claims.checks import ClaimChecks
from streams.errors import BlobsUnavailable, TransientError
from streams.policy.retry import RetryPolicy
from streams.testing.blobs import MemoryBlobs
from tests.effort import examples

SIZES = st.sampled_from([0, 10, THRESHOLD - 60, THRESHOLD, 3_000, 50_000])


class FlakyBlobs(MemoryBlobs):
    """Fails so many of the next requests, before they take effect or after."""

    failures = 0
    late = False

    async def _request(self, method: str) -> None:
        await super()._request(method)
        if self.failures and not self.late:
            self._fail()

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        await super().put(name, data, content_type)
        if self.failures:
            self._fail()

    def _fail(self) -> None:
        self.failures -= 1
        raise BlobsUnavailable("as a test wants it")


class ParcelLanes(Lanes):
    """The model is a list of texts for each key."""

    retry: ClassVar[RetryPolicy] = RetryPolicy(immediate=1, delays=(0.2, 0.5, 2.0))

    def __init__(self) -> None:
        super().__init__()
        self.parcels = Parcels(self.world, self.work)  # type: ignore[arg-type]
        self.blobs = FlakyBlobs(BUCKET, now=self.world.clock.now, sleep=self.world.clock.sleep)
        self.parcels.blobs = self.blobs
        self.parcels.checks = ClaimChecks(
            self.blobs,
            bucket=BUCKET,
            threshold=THRESHOLD,
            max_in_flight_bytes=60_000,
            cache_bytes=4_000,
        )
        self.lane_options = {"claims": self.parcels.checks, "retry": self.retry, "breaker": PATIENT}  # type: ignore[misc]
        self.to_fail = self.retry.max_attempts - 1

    def workload(self) -> Any:
        return carrying(self.world.name)

    @rule(parcels=st.lists(st.tuples(KEYS, SIZES), min_size=1, max_size=8))
    def produce_parcels(self, parcels: list[tuple[str, int]]) -> None:
        slow, failures = self.blobs.slow, self.blobs.failures
        self.blobs.slow = self.blobs.failures = 0
        for key, size in parcels:
            i = len(self.posts)
            self.posts[f"{key}-{i}"] = self.run(self.parcels.post(key, i, size))
        self.blobs.slow, self.blobs.failures = slow, failures

    @rule(keys=st.lists(KEYS, min_size=1, max_size=12))
    def produce(self, keys: list[str]) -> None:
        self.produce_parcels([(key, 0) for key in keys])

    @rule(late=st.booleans())
    def failures_are_late(self, late: bool) -> None:
        """Whether a failed write has taken effect."""
        self.blobs.late = late

    @precondition(lambda self: self.to_fail)
    @rule(data=st.data())
    def requests_fail(self, data: st.DataObject) -> None:
        """Never as many in all as a message has attempts, so that none becomes a dead letter."""
        some = data.draw(st.integers(1, self.to_fail))
        self.to_fail -= some
        self.blobs.failures += some

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.5]))
    def requests_are_slow(self, seconds: float) -> None:
        self.blobs.slow = seconds

    def order_of(self, i: int) -> str:
        """What parcels are ordered by within their key."""
        return ""

    async def until_done(self) -> None:
        self.blobs.slow = 0.0
        await super().until_done()
        while await waiting(self.world):
            await self.world.clock.advance(0.5)
        await super().until_done()

    async def check(self) -> None:
        self.blobs.failures = 0
        await self.parcels.check(order_of=self.order_of)
        assert self.parcels.checks.held.held == self.parcels.checks.in_flight.held == 0


class AsyncParcelLanes(ParcelLanes):
    """The first handler is async, and some take their time: parcels come while another is under way."""

    def workload(self) -> Any:
        return carrying(self.world.name, ask=self.ask)

    async def ask(self, key: str, i: int) -> None:
        await asyncio.sleep(0)
        if i % 3 == 0:
            await self.world.clock.sleep(0.4)


class FinerParcelLanes(ParcelLanes):
    """Ordered by less than the key, which shows only with the payload; and handlers fail as well as requests,
    never both so often that a parcel becomes a dead letter.
    """

    retry: ClassVar[RetryPolicy] = RetryPolicy(immediate=0, delays=(0.2, 0.5, 2.0))

    def __init__(self) -> None:
        super().__init__()
        self.to_fail -= 1
        self.failing: set[tuple[str, int]] = set()
        self.work.hooks.before = self.fail_once

    def workload(self) -> Any:
        return carrying(self.world.name, order_by=lambda event: self.order_of(event.i))

    def order_of(self, i: int) -> str:
        return str(i % 3)

    def fail_once(self, event: Any) -> None:
        if (event.k, event.i) in self.failing:
            self.failing.remove((event.k, event.i))
            raise TransientError("as a test wants it")

    @rule(key=KEYS, sizes=st.lists(SIZES, min_size=1, max_size=6))
    def produce_what_fails(self, key: str, sizes: list[int]) -> None:
        self.failing.add((key, len(self.posts)))
        self.produce_parcels([(key, size) for size in sizes])


for _machine in (ParcelLanes, AsyncParcelLanes, FinerParcelLanes):
    _machine.TestCase.settings = settings(
        max_examples=examples(60),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestParcelLanes = ParcelLanes.TestCase
TestAsyncParcelLanes = AsyncParcelLanes.TestCase
TestFinerParcelLanes = FinerParcelLanes.TestCase
