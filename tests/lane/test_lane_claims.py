"""Payloads that are too large for a record travel by reference, and no handler sees the difference: not its
order, not an outage of the object store, not a crash.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from lane_checker import counts, dead_letters, latest
from lane_failing import PATIENT, QUICK
from lane_parcels import BUCKET, Parcels
from lane_scenes import POINTS
from lane_workloads import Workload, carrying
from lane_worlds import FakeWorld, Post, World

from streams.errors import UnknownSchema
from streams.model.claim import DATAREF, SHA256, Claim, claim_in, with_claim
from streams.model.layout import retry_topic
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy
from streams.testing.blobs import MemoryBlobs
from streams.testing.faults import LaneKilled

LARGE, SMALL = 50_000, 10


async def begun(
    world: World, work: Workload | None = None, *, sleep: Any = None, in_flight: int = 1 << 20, **options: Any
) -> Parcels:
    """A world with parcels, in which no lane runs yet; `sleep` is how a request of the bucket waits."""
    blobs = MemoryBlobs(BUCKET, now=world.clock.now, sleep=sleep or world.clock.sleep)
    parcels = Parcels(world, work or carrying(world.name), in_flight=in_flight, blobs=blobs)
    await parcels.start(**options)
    return parcels


async def post(parcels: Parcels, keys: Iterable[str], *sizes: int) -> None:
    """A parcel of each size, one after the other, for each of the keys."""
    for i, size in enumerate(sizes):
        for key in keys:
            await parcels.post(key, i, size)


async def made(parcels: Parcels) -> tuple[Post, Claim]:
    made = await parcels.made("a", 0, "a-0:".ljust(LARGE, "x"))
    claim = claim_in(dict(made.headers))
    assert claim is not None
    return made, claim


async def buried(parcels: Parcels) -> dict[str, bytes]:
    await parcels.stop(await parcels.world.open())
    (letter,) = await dead_letters(parcels.world, parcels.work.source)
    return dict(letter.headers)


async def by_reference(parcels: Parcels) -> list[bool]:
    """Of each parcel that was passed on, whether it went by reference."""
    return [DATAREF in dict(record.headers) for record in await parcels.world.records(parcels.work.output)]


@pytest.mark.promise("payloads")
@pytest.mark.landing
async def test_the_large_goes_by_reference_and_handlers_see_the_payload(world: World) -> None:
    parcels = await begun(world)
    await post(parcels, "a", SMALL, LARGE, SMALL, LARGE)
    began = world.clock.now()
    await parcels.finish(await world.open())
    rows = await latest(world, "claims")
    assert sorted(name.decode() for _, name in rows) == sorted(parcels.blobs.names)
    for value in rows.values():
        assert began - 0.001 <= int.from_bytes(value, "big") / 1000 <= world.clock.now()
    assert await by_reference(parcels) == [False, True, False, True]
    out = await world.records(parcels.work.output)
    headers = dict(out[1].headers)
    claim = claim_in(headers)
    assert claim is not None
    assert (claim.bucket, claim.size > LARGE) == (BUCKET, True)
    assert claim.name.startswith(f"events/{parcels.work.output}/{headers['ce_id'].decode()}-")
    assert parcels.blobs.content_type(claim.name) == "application/json"
    assert dict(out[0].headers).keys() < headers.keys()


async def test_an_async_handler_sees_payloads_and_sends_them(world: World) -> None:
    async def ask(key: str, i: int) -> None:
        await asyncio.sleep(0)

    parcels = await begun(world, carrying(world.name, ask=ask))
    await post(parcels, "abc", SMALL, LARGE, SMALL, LARGE)
    await parcels.finish(await world.open())


async def test_a_message_marked_binary_goes_by_reference_however_small(fake: FakeWorld) -> None:
    work = carrying(fake.name)
    work.counted.BINARY = True
    parcels = await begun(fake, work)
    await parcels.post("a", 0)
    await parcels.finish(await fake.open())
    assert await by_reference(parcels) == [True]


@pytest.mark.promise("payloads")
async def test_a_key_keeps_its_order_whatever_the_sizes(world: World) -> None:
    """Other keys pass."""
    answers = asyncio.Event()

    async def sleep(_: float) -> None:
        await answers.wait()

    parcels = await begun(world, sleep=sleep)
    answers.set()
    await post(parcels, "a", LARGE, SMALL, SMALL, LARGE, SMALL)
    await post(parcels, "b", *[SMALL] * 5)
    answers.clear()
    lane = await world.open()
    await world.until(lambda: ("b", 4) in parcels.work.hooks.calls)
    assert ("a", 0) not in parcels.work.hooks.calls, "a small key waits for no download of another"
    answers.set()
    await parcels.finish(lane)


async def test_downloads_and_uploads_of_different_keys_overlap(world: World) -> None:
    all_of_them, together = asyncio.Barrier(8), False

    async def sleep(_: float) -> None:
        if together:
            await all_of_them.wait()

    parcels = await begun(world, sleep=sleep)
    await post(parcels, "abcdefgh", LARGE)
    together = True
    lane = await world.open()
    await world.until(lambda: parcels.blobs.requests == {"put": 8 + 8, "get": 2 * 8})
    together = False
    await parcels.finish(lane)


@pytest.mark.promise("payload-memory")
async def test_payloads_in_memory_are_bounded_in_bytes_and_in_number(fake: FakeWorld) -> None:
    parcels = await begun(fake, in_flight=3 * (LARGE + 100), max_in_flight=4)
    held: list[int] = []
    parcels.work.hooks.before = lambda event: held.append(parcels.checks.held.held)
    for n in range(40):
        await parcels.post(f"k{n}", 0, LARGE)
    parcels.blobs.slow, parcels.blobs.most_at_once = 0.1, 0
    lane = await fake.open()
    await fake.until(lambda: bool(held))
    assert lane.lane.backlog <= 4
    await parcels.finish(lane)
    assert parcels.blobs.most_at_once == 3
    assert max(held) <= 3 * (LARGE + 100)
    assert min(held) >= LARGE, "what a handler is at is held"
    assert parcels.checks.held.held == 0


@pytest.mark.promise("payload-memory")
async def test_what_sync_handlers_make_of_little_is_bounded_too(fake: FakeWorld) -> None:
    parcels = await begun(fake, in_flight=3 * (LARGE + 100))
    parcels.work.hooks.passed = lambda event: event.text.ljust(LARGE, ".")
    await post(parcels, [f"k{n}" for n in range(20)], 0, 0)
    parcels.blobs.slow = 0.1
    lane = await fake.open()
    await fake.until(lambda: parcels.checks.held.held > 0)
    assert lane.lane.counters.handled == 0
    await parcels.stop(lane)
    texts = sorted(text for of_key in parcels.sent.values() for text in of_key)
    assert sorted(each["text"].rstrip(".") for each in await parcels.passed_on()) == texts
    assert await by_reference(parcels) == [True] * 40
    assert await counts(fake) == {f"k{n}": 2 for n in range(20)}
    assert parcels.checks.counters.checked_in == 40
    assert parcels.blobs.most_at_once == 3
    assert parcels.checks.held.held == 0


@pytest.mark.promise("payloads")
async def test_a_duplicate_costs_no_download(world: World) -> None:
    parcels = await begun(world)
    post, _ = await made(parcels)
    parcels.sent["a"] = ["a-0:".ljust(LARGE, "x")]
    await world.post(post._replace(partition=1 - post.partition))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.misrouted == 1)  # it is sent on without its payload
    await world.post(post, post)
    await world.until(lambda: lane.lane.counters.duplicates == 2)
    await world.post(post)
    await world.until(lambda: lane.lane.counters.duplicates == 3)
    await parcels.finish(lane)
    assert parcels.blobs.requests["get"] == 3, "one for each handler that runs, one by the check"


# -- when it does not work ----------------------------------------------------------------------------------


@pytest.mark.promise("object-store-outage")
async def test_a_key_waits_in_order_while_the_store_is_down(world: World) -> None:
    parcels = await begun(world, retry=QUICK)
    await post(parcels, "a", LARGE, LARGE, SMALL)
    await parcels.post("b", 0, SMALL)
    parcels.blobs.down = True
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and lane.lane.counters.waiting == 3)
    assert parcels.blobs.requests["get"] == 3, "one and two immediate retries, none for what waits behind"
    assert parcels.work.hooks.calls == [("b", 0)]
    parcels.blobs.down = False
    await parcels.finish(lane)
    (shown,) = (await world.records(retry_topic(parcels.work.source, 1)))[:1]
    assert (shown.value, DATAREF in dict(shown.headers)) == (b"", True)
    assert await dead_letters(world, parcels.work.source) == []


@pytest.mark.promise("object-store-outage")
async def test_a_long_outage_opens_the_breaker_instead_of_burying_messages(fake: FakeWorld) -> None:
    breaker = BreakerPolicy(window=10, minimum=10, open_for=2.0, max_open_for=8.0, probes=2)
    parcels = await begun(fake, breaker=breaker, retry=RetryPolicy(delays=(5.0, 20.0, 60.0)))
    for i in range(2):
        for n in range(30):
            await parcels.post(f"k{n}", i, LARGE)
    parcels.blobs.down = True
    lane = await fake.open()
    begin = fake.clock.now()
    await fake.until(lambda: fake.clock.now() > begin + 60)
    assert await dead_letters(fake, parcels.work.source) == []
    assert parcels.blobs.requests["get"] < 120, "then a few probes, no more"
    parcels.blobs.down = False
    await parcels.finish(lane)


@pytest.mark.promise("object-store-outage")
async def test_an_upload_that_fails_leaves_nothing_of_the_outcome(world: World) -> None:
    parcels = await begun(world)
    parcels.work.hooks.passed = lambda event: event.text.ljust(LARGE if event.i == 1 else 0, ".")
    await post(parcels, "a", 0, 0, 0)
    parcels.blobs.down = True
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1)
    await world.settled(parcels.work.source)
    assert await counts(world) == {"a": 1}, "the first one only"
    parcels.blobs.down = False
    await world.until(lambda: ("a", 2) in parcels.work.hooks.calls)
    await parcels.stop(lane)
    out = await parcels.passed_on()
    assert [(each["n"], each["text"].rstrip(".")) for each in out] == list(enumerate(parcels.sent["a"], 1))
    assert await counts(world) == {"a": 3}


@pytest.mark.promise("object-store-outage")
@pytest.mark.parametrize(("fault", "error"), [("lose", b"BlobMissing"), ("alter", b"BlobAltered")])
async def test_a_lost_or_altered_payload_is_named_by_its_letter(
    world: World, fault: str, error: bytes
) -> None:
    parcels = await begun(world)
    _, claim, _ = [claim_in(dict((await parcels.post("a", i, LARGE)).headers)) for i in range(3)]
    assert claim is not None
    getattr(parcels.blobs, fault)(claim.name)
    headers = await buried(parcels)
    assert headers["dlq-error-type"] == error
    assert claim.reference.encode() in headers["dlq-error-message"]
    assert headers[DATAREF] == claim.reference.encode()
    (letter,) = await dead_letters(world, parcels.work.source)
    assert letter.value == b""
    assert claim.name in await parcels.named()
    await parcels.check(dead=[parcels.sent["a"][1]])


@pytest.mark.promise("bad-references")
async def test_a_reference_that_does_not_read_is_a_dead_letter(world: World) -> None:
    parcels = await begun(world)
    post = await parcels.post("a", 0, LARGE)
    spoiled = {SHA256: b"?", "ce_id": b"a-9"}
    await world.post(post._replace(headers=[(name, spoiled.get(name, v)) for name, v in post.headers]))
    assert (await buried(parcels))["dlq-error-type"] == b"BadReference"
    assert [each["text"] for each in await parcels.passed_on()] == parcels.sent["a"]


async def test_a_payload_in_a_foreign_bucket_is_not_fetched(world: World) -> None:
    parcels = await begun(world)
    post, claim = await made(parcels)
    foreign = claim._replace(bucket="somebody-elses")
    await world.post(post._replace(headers=with_claim(post.headers, foreign)))
    assert b"s3://somebody-elses/" in (await buried(parcels))["dlq-error-message"]
    assert parcels.blobs.requests["get"] == 0
    assert await parcels.named() == set()


async def test_a_payload_about_another_key_is_a_dead_letter(world: World) -> None:
    parcels = await begun(world)
    post, _ = await made(parcels)
    key = next(k for k in "bcdefgh" if world.app.layout.partition_of(k.encode()) == post.partition)
    await world.post(post._replace(key=key.encode()))
    assert (await buried(parcels))["dlq-error-type"] == b"KeyMismatch"
    assert parcels.work.hooks.calls == []


async def test_a_worker_without_an_object_store_says_what_to_set(world: World) -> None:
    """And the message waits."""
    parcels = Parcels(world, carrying(world.name))
    await world.start(parcels.work, retry=QUICK, breaker=PATIENT)
    await parcels.post("a", 0, LARGE)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1)
    await world.settled(parcels.work.source)
    await lane.stop()
    (shown,) = (await world.records(retry_topic(parcels.work.source, 1)))[:1]
    assert b"STEADFAUST_S3_BUCKET" in dict(shown.headers)["retry-error-message"]
    assert await dead_letters(world, parcels.work.source) == []


async def test_an_unknown_schema_is_awaited_before_the_payload_is_fetched(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcels = await begun(fake)
    codec = fake.app.message_codecs[parcels.work.source]

    def require(fingerprint: bytes | None) -> None:
        raise UnknownSchema("f" * 16)

    monkeypatch.setattr(codec, "require", require)
    await parcels.post("a", 0, LARGE)
    lane = await fake.open()
    await fake.clock.advance(2.0)
    assert parcels.blobs.requests["get"] == 0
    assert lane.lane.backlog == 0
    monkeypatch.undo()
    await parcels.finish(lane)


# -- crashes ------------------------------------------------------------------------------------------------


@pytest.mark.promise("no-dangling-reference")
@pytest.mark.parametrize("point", [*POINTS[:2], pytest.param("sent", marks=pytest.mark.landing), *POINTS[3:]])
@pytest.mark.parametrize("wiped", [False, True], ids=["disk kept", "disk lost"])
async def test_a_crash_before_the_commit_leaves_no_reference_without_object(
    world: World, point: str, wiped: bool
) -> None:
    parcels = await begun(world, max_batch=3)
    await post(parcels, "ab", SMALL, LARGE, SMALL, LARGE)
    world.faults.kill_at(point, 2)
    await world.lane().killed()
    await parcels.stop(await world.open(stores=world.stores() if wiped else None))
    await parcels.check()


class KillingBlobs(MemoryBlobs):
    """Ends the lane at the nth request of a kind, before or after it took effect."""

    kill: tuple[str, int, str] = ("", 0, "")

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        self._reach("put", "before")
        await super().put(name, data, content_type)
        self._reach("put", "after")

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        self._reach("get", "before")
        data = await super().get(name, at_most=at_most)
        self._reach("get", "after")
        return data

    def _reach(self, kind: str, when: str) -> None:
        nth = self.requests[kind] + (when == "before")
        if self.kill == (kind, nth, when):
            self.kill = ("", 0, "")
            raise LaneKilled(f"killed {when} {kind} {nth}")


@pytest.mark.promise("no-dangling-reference")
@pytest.mark.parametrize("kind", ["put", "get"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_crash_at_a_transfer_leaves_an_orphan_at_most(
    fake: FakeWorld, kind: str, when: str, nth: int
) -> None:
    blobs = KillingBlobs(BUCKET, now=fake.clock.now, sleep=fake.clock.sleep)
    parcels = Parcels(fake, carrying(fake.name), blobs=blobs)
    await parcels.start()
    await post(parcels, "a", *[LARGE] * 4)
    blobs.requests.clear()
    blobs.kill = (kind, nth, when)
    await fake.lane().killed()
    await parcels.finish(await fake.open())
    assert len(blobs.names) == 8, "the ids of a rerun are the same, and so are the objects"
    assert parcels.checks.held.held == 0
    assert parcels.checks.in_flight.held == 0


async def test_a_rerun_that_decides_otherwise_makes_another_object(fake: FakeWorld) -> None:
    parcels = await begun(fake)
    parcels.work.hooks.passed = lambda event: "first".ljust(LARGE)
    await parcels.post("a", 0)
    fake.faults.kill_at("staged")
    await fake.lane().killed()
    parcels.work.hooks.passed = lambda event: "second".ljust(LARGE)
    await parcels.stop(await fake.open())
    (out,) = await parcels.passed_on()
    assert out["text"].startswith("second")
    assert len(parcels.blobs.names) == 2
    assert len(await parcels.named()) == 1, "the other is an orphan"


async def test_stopping_a_lane_lets_go_of_what_it_holds(fake: FakeWorld) -> None:
    parcels = await begun(fake)
    await post(parcels, "abc", LARGE)
    parcels.blobs.slow = 20.0
    lane = await fake.open()
    await fake.until(lambda: parcels.checks.in_flight.held > 0)
    await lane.stop()
    await fake.turns()
    assert parcels.checks.held.held == parcels.checks.in_flight.held == 0
    parcels.blobs.slow = 0.0
    await parcels.finish(await fake.open())
