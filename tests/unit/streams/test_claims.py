import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streams.errors import BlobAltered, BlobMissing, BlobsUnavailable, PermanentError, TransientError
from streams.model.claim import BadReference, Claim, claim_of, with_claim
from streams.model.claim_checks import OVERHEAD, ClaimChecks
from streams.testing.blobs import MemoryBlobs
from tests.effort import examples

BUCKET = "event-payloads"


def headers(claim: Claim) -> dict[str, bytes]:
    return dict(with_claim([("ce_id", b"o-1")], claim))


async def stored(checks: ClaimChecks, data: bytes, message_id: str = "o-1") -> dict[str, bytes]:
    claim = checks.claim("orders.order.placed.v1", message_id, data, "application/pdf")
    await checks.check_in(claim, data)
    return headers(claim)


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs(BUCKET)


@pytest.fixture
def checks(blobs: MemoryBlobs) -> ClaimChecks:
    return ClaimChecks(blobs, bucket=BUCKET, max_in_flight_bytes=100, cache_bytes=0)


@pytest.mark.parametrize("data", [b"", b"a picture", b"x" * 10_000], ids=["empty", "small", "over the bound"])
async def test_payload_comes_out_as_it_went_in(blobs: MemoryBlobs, checks: ClaimChecks, data: bytes) -> None:
    message = await stored(checks, data)
    (name,) = blobs.names
    assert message["ce_dataref"] == f"s3://event-payloads/{name}".encode()
    assert blobs.content_type(name) == "application/pdf"
    assert await checks.check_out(message) == data
    assert (checks.counters.checked_in, checks.counters.checked_out) == (1, 1)
    assert (checks.counters.bytes_in, checks.counters.bytes_out) == (len(data), len(data))


async def test_nothing_is_written_before_the_check_in(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    checks.claim("t", "1", b"x")
    assert not blobs.requests


async def test_an_orphan_that_is_checked_in_again_counts_as_new() -> None:
    now = 1000.0
    blobs = MemoryBlobs(BUCKET, now=lambda: now)
    checks = ClaimChecks(blobs, bucket=BUCKET)
    await stored(checks, b"x")
    now = 2000.0
    await stored(checks, b"x")
    assert [blob.modified async for blob in blobs.scan("")] == [2000.0]


async def test_a_store_that_is_down_is_transient_both_ways(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    message = await stored(checks, b"kept")
    blobs.down = True
    with pytest.raises(BlobsUnavailable) as out:
        await checks.check_out(message)
    with pytest.raises(BlobsUnavailable):
        await stored(checks, b"x")
    assert isinstance(out.value, TransientError)
    blobs.down = False
    assert await checks.check_out(message) == b"kept"
    assert checks.counters.checked_in == 1


async def test_a_missing_object_is_permanent_and_named(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    message = await stored(checks, b"x")
    blobs.lose(name := blobs.names[0])
    with pytest.raises(BlobMissing, match=name) as raised:
        await checks.check_out(message)
    assert isinstance(raised.value, PermanentError)
    assert blobs.faults["missing"] == 1


@pytest.mark.parametrize("data", [None, b"", b"a gift pictur", b"a gift picture, and a virus"])
async def test_altered_object_is_permanent_named_and_not_kept(blobs: MemoryBlobs, data: bytes | None) -> None:
    checks = ClaimChecks(blobs, bucket=BUCKET)
    message = await stored(checks, b"a gift picture")
    blobs.alter(name := blobs.names[0], data)
    for _ in range(2):
        with pytest.raises(BlobAltered, match=name) as raised:
            await checks.check_out(message)
    assert isinstance(raised.value, PermanentError)
    assert blobs.faults["altered"] == 2


@pytest.mark.parametrize("reference", [b"s3://secrets/events/t/1-2", b"s3://event-payloads/backups/1"])
async def test_a_reference_out_of_the_payloads_is_not_followed(
    blobs: MemoryBlobs, checks: ClaimChecks, reference: bytes
) -> None:
    message = {**headers(claim_of(BUCKET, "t", "1", b"x")), "ce_dataref": reference}
    with pytest.raises(BadReference, match=f"{reference.decode()} is not ours to read"):
        await checks.check_out(message)
    assert not blobs.requests


async def test_a_message_without_a_reference_has_nothing_to_check_out(checks: ClaimChecks) -> None:
    with pytest.raises(BadReference, match="no header ce_dataref"):
        await checks.check_out({"ce_id": b"o-1"})


async def test_what_was_read_lately_is_not_fetched_again(blobs: MemoryBlobs) -> None:
    checks = ClaimChecks(blobs, bucket=BUCKET, cache_bytes=2 * (OVERHEAD + 10))
    first, second, third = [await stored(checks, bytes([n]) * 10, f"o-{n}") for n in range(3)]
    for message in (first, second, first, third, first, second):
        await checks.check_out(message)
    assert blobs.requests["get"] == 4, "second went when third came"
    assert checks.counters.hits == 2


async def test_an_object_that_many_want_is_fetched_once(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    message = await stored(checks, b"popular")
    assert await asyncio.gather(*(checks.check_out(message) for _ in range(5))) == [b"popular"] * 5
    assert blobs.requests["get"] == 1
    assert checks.counters.shared == 4


async def test_one_who_leaves_does_not_end_others_download(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    message = await stored(checks, b"popular")
    leaves, stays = (asyncio.create_task(checks.check_out(message)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await stays == b"popular"
    assert leaves.cancelled()


async def test_those_who_try_again_at_once_share_again(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    message = await stored(checks, b"popular")
    blobs.down = True

    async def persistent() -> bytes:
        try:
            return await checks.check_out(message)
        except BlobsUnavailable:
            blobs.down = False
            return await checks.check_out(message)

    assert list(await asyncio.gather(persistent(), persistent())) == [b"popular"] * 2
    assert blobs.requests["get"] == 2


async def test_uploads_and_downloads_share_one_bound(blobs: MemoryBlobs, checks: ClaimChecks) -> None:
    messages = [await stored(checks, bytes([n]) * 40, f"o-{n}") for n in range(3)]
    blobs.most_at_once = 0
    out = (checks.check_out(message) for message in messages)
    into = (stored(checks, bytes([n]) * 40, f"o-{n}") for n in range(3, 6))
    await asyncio.gather(*out, *into)
    assert blobs.most_at_once == 2


class WatchedBlobs(MemoryBlobs):
    """Answers when it is told to, in any order, and knows which downloads are under way."""

    def __init__(self) -> None:
        super().__init__(BUCKET, sleep=self._wait)
        self.asked: list[asyncio.Future[None]] = []
        self.downloads: Counter[str] = Counter()

    async def _wait(self, _seconds: float) -> None:
        answer = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        await answer

    @property
    def unanswered(self) -> list[asyncio.Future[None]]:
        return [answer for answer in self.asked if not answer.done()]

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        self.downloads[name] += 1
        try:
            return await super().get(name, at_most=at_most)
        finally:
            self.downloads[name] -= 1


class Requests(RuleBasedStateMachine):
    """Check-outs by many callers, who may leave, of a store that may be down and lose objects."""

    LIMIT, CACHE = 50, 60
    DATA = tuple(bytes([n]) * (n * 12) for n in range(6))  # the largest is over both limits

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        self.blobs = WatchedBlobs()
        self.checks = ClaimChecks(
            self.blobs, bucket=BUCKET, max_in_flight_bytes=self.LIMIT, cache_bytes=self.CACHE
        )
        self.claims = [self.checks.claim("t", f"o-{n}", data) for n, data in enumerate(self.DATA)]
        self.calls: list[tuple[int, asyncio.Task[bytes]]] = []
        for n in range(len(self.DATA)):
            self.runner.run(self.write(n))

    @property
    def waiting(self) -> list[asyncio.Task[bytes]]:
        return [task for _, task in self.calls if not task.done()]

    async def write(self, n: int) -> None:
        writing = asyncio.create_task(self.checks.check_in(self.claims[n], self.DATA[n]))
        await self.settle()
        self.blobs.unanswered[-1].set_result(None)
        await writing

    async def settle(self) -> None:
        """Let everything run that waits for nobody. Digests are computed in the one thread that there is,
        so whoever has waited for that thread has waited for them.
        """
        before, quiet = None, 0
        while quiet < 3:
            for _ in range(10):
                await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)
            now = (len(self.blobs.unanswered), len(self.waiting), self.checks.in_flight.held)
            before, quiet = now, quiet + 1 if now == before else 0

    @rule(wanted=st.lists(st.integers(0, 5), min_size=1, max_size=4))
    def check_out(self, wanted: list[int]) -> None:
        async def step() -> None:
            for n in wanted:
                call = self.checks.check_out(headers(self.claims[n]))
                self.calls.append((n, asyncio.create_task(call)))
            await self.settle()

        self.runner.run(step())

    @precondition(lambda self: self.blobs.unanswered)
    @rule(data=st.data(), down=st.booleans())
    def answer(self, data: st.DataObject, *, down: bool) -> None:
        async def step() -> None:
            self.blobs.down = down
            data.draw(st.sampled_from(self.blobs.unanswered)).set_result(None)
            await self.settle()
            self.blobs.down = False

        self.runner.run(step())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        async def step() -> None:
            data.draw(st.sampled_from(self.waiting)).cancel()
            await self.settle()

        self.runner.run(step())

    @rule(n=st.integers(0, 5))
    def lose(self, n: int) -> None:
        if self.claims[n].name in self.blobs.names:
            self.blobs.lose(self.claims[n].name)

    @precondition(lambda self: not self.blobs.unanswered)
    @rule(n=st.integers(0, 5))
    def check_in(self, n: int) -> None:
        self.runner.run(self.write(n))

    @invariant()
    def bounds_hold(self) -> None:
        under_way = [claim.size for claim in self.claims if self.blobs.downloads[claim.name]]
        assert sum(under_way) <= self.LIMIT or len([size for size in under_way if size]) == 1
        assert self.checks.in_flight.held == min(sum(under_way), self.LIMIT)
        assert self.checks.cache.currsize <= self.CACHE

    @invariant()
    def no_object_is_downloaded_twice_at_a_time_or_for_nobody(self) -> None:
        wanted = {self.claims[n].name for n, task in self.calls if not task.done()}
        for name, downloads in self.blobs.downloads.items():
            assert downloads <= (name in wanted)

    @invariant()
    def who_waits_waits_for_an_answer(self) -> None:
        assert bool(self.waiting) == bool(self.blobs.unanswered)

    @invariant()
    def answers_are_right(self) -> None:
        for n, task in self.calls:
            if task.done() and not task.cancelled():
                error = task.exception()
                assert isinstance(error, BlobsUnavailable | BlobMissing) or task.result() == self.DATA[n]

    def teardown(self) -> None:
        async def step() -> None:
            while pending := self.blobs.unanswered:
                pending[0].set_result(None)
                await self.settle()

        self.runner.run(step())
        assert not self.waiting
        assert self.checks.in_flight.held == 0
        self.answers_are_right()
        self.runner.close()


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=examples(40), stateful_step_count=20)
