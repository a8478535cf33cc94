"""On real Kafka: records of any size in all that a client controls, parcels through S3, and what waits."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lane_checker import check_store, counts, dead_letters
from lane_failing import LATER, Failing
from lane_kafka import KafkaWorld
from lane_parcels import BUCKET, Parcels
from lane_scenes import finished, opened, retrying_counter, until_so
from lane_workloads import Workload, carrying, counting
from lane_worlds import FakeWorld, Post, World, closing

from streams.errors import TransientError
from streams.host.client import waiting
from streams.local import Stack, local_stack
from streams.local.s3 import ACCESS_KEY, SECRET_KEY
from streams.model.envelope import MAX_ID_BYTES, record_size
from streams.model.policy.retry import RetryPolicy
from streams.s3 import S3Blobs, S3Options
from tests.effort import examples

pytestmark = pytest.mark.promise("size-limits", "records of any sizes among good ones")

LIMIT = 20_000
EDGES = [0, 1, 40, 1_000, MAX_ID_BYTES, MAX_ID_BYTES + 1, 9_000, 19_000, 19_400, 25_000, 60_000]
SIZES = st.sampled_from(EDGES) | st.integers(0, LIMIT)
#: What a client gives a size: headers that are known or not, the key, the value.
PARTS = [
    *("ce_id", "ce_source", "ce_subject", "ce_type", "ce_time", "ce_correlationid", "ce_causationid"),
    *("ce_expirytime", "ce_dataref", "traceparent", "schema-fingerprint", "note", "key", "value", "many"),
]


class Odd(NamedTuple):
    """A record: which of its parts has which size, and what its handler does with it."""

    sizes: dict[str, int]
    fails: bool
    astray: bool
    passed: int
    row: int


NAMED = st.dictionaries(st.sampled_from(PARTS), SIZES, max_size=3)
ODD = st.builds(Odd, NAMED, st.booleans(), st.booleans(), SIZES, SIZES)
#: Each part alone, longer than any record may be.
ALL = [Odd({part: 60_000}, fails, astray=False, passed=0, row=0) for part in PARTS for fails in (False, True)]
#: What is sent in answer is about as large as it may be, or goes on with headers that are large.
NEAR = [Odd({}, fails=False, astray=False, passed=size, row=0) for size in range(19_000, 20_200, 75)]
NEAR += [
    Odd({name: size}, fails=False, astray=False, passed=9_000, row=0)
    for name in ("ce_id", "ce_correlationid", "traceparent", "ce_source")
    for size in (9_000, 17_000, 19_500)
]


def post_of(world: World, work: Workload, i: int, odd: Odd) -> Post | None:
    """The record; None when no topic would take it. The fake takes more, as if it came compressed."""
    sizes = odd.sizes
    key = f"odd{i}" + "k" * sizes.get("key", 0)
    own = world.event(work, key, i)
    value = (own.value or b"")[:-1] + b" " * sizes.get("value", 0) + b"}"
    headers = [header for header in own.headers if header[0] not in sizes]
    for name in sizes.keys() - {"key", "value", "many"}:
        told = str(i).encode() if name == "ce_id" else b""  # else they would repeat each other
        headers.append((name, (told + b"x" * sizes[name])[: max(sizes[name], len(told))]))
    headers += [("", b"")] * (sizes.get("many", 0) // 20)
    if record_size(own.key, value, headers) > LIMIT and not world.is_fake:
        return None
    partition = 1 - own.partition if odd.astray else own.partition
    return own._replace(value=value, headers=headers, partition=partition)


async def run(world: World, odd: list[Odd]) -> None:
    await world.start(work := counting(world.name), retry=LATER, max_message_bytes=LIMIT)
    failed: Counter[int] = Counter()

    def before(event: Any) -> None:
        if event.i < len(odd) and odd[event.i].fails and not failed[event.i]:
            failed[event.i] += 1
            raise TransientError("busy")

    work.hooks.before = before
    work.hooks.passed = lambda event: "x" * odd[event.i].passed if event.i < len(odd) else ""
    work.hooks.text = lambda event: "x" * odd[event.i].row if event.i < len(odd) else ""
    made = [post_of(world, work, i, each) for i, each in enumerate(odd)]
    sent = [post for post in made if post is not None]
    good = [world.event(work, "good", 1000 + i) for i in range(len(sent) + 1)]
    await world.post(*(post for pair in zip(good, sent, strict=False) for post in pair), good[-1])
    lane = await world.open()

    async def accounted() -> int:
        return len(await world.records(work.output)) + len(await dead_letters(world, work.source))

    async def all_accounted() -> bool:
        return await accounted() >= len(sent) + len(good)

    await world.settled(work.source)
    await until_so(world, all_accounted)
    await lane.stop()
    assert lane.lane.reopened == 0
    assert await accounted() == len(sent) + len(good)
    assert (await counts(world))["good"] == len(good)
    await check_store(world)


@given(st.lists(ODD, min_size=1, max_size=30))
@example(ALL)
@example(NEAR)
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
async def test_records_of_any_sizes_are_handled_or_dead_letters(odd: list[Odd]) -> None:
    async with closing(FakeWorld()) as world:
        await run(world, odd)


@given(st.lists(ODD, min_size=30, max_size=60))
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
async def test_real_brokers_refuse_nothing_of_what_comes_of_them(
    kafka: Stack, tmp_path_factory: pytest.TempPathFactory, odd: list[Odd]
) -> None:
    async with closing(KafkaWorld(kafka.bootstrap, tmp_path_factory.mktemp("lane"))) as world:
        await run(world, odd)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with local_stack(tmp_path_factory.mktemp("s3"), brokers=0, buckets=[BUCKET]) as stack:
        yield stack


@pytest.fixture
async def parcels(
    s3: Stack, kafka: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Parcels]:
    blobs = S3Blobs(S3Options(BUCKET, s3.url("s3"), ACCESS_KEY, SECRET_KEY))
    async with closing(KafkaWorld(kafka.bootstrap, tmp_path)) as world:
        parcels = Parcels(world, carrying(world.name), in_flight=16 << 20, blobs=blobs)
        await parcels.start(**getattr(request, "param", {}))
        yield parcels
    await blobs.close()


@pytest.mark.promise("payloads", "on real S3")
async def test_parcels_to_5_mb_come_out_as_they_went_in(parcels: Parcels) -> None:
    for i in range(14):
        await parcels.post("abc"[i % 3], i, min(10 ** (i % 7 + 1), 5_000_000))
    await parcels.finish(await parcels.world.open())


@pytest.mark.landing
# However long it takes to start again on a busy machine.
@pytest.mark.parametrize("parcels", [{"outage_patience": 60.0}], indirect=True)
async def test_an_outage_of_s3_neither_loses_nor_doubles_anything(s3: Stack, parcels: Parcels) -> None:
    for i in range(6):
        await parcels.post("ab"[i % 2], i, 100_000)
    await asyncio.to_thread(s3.stop_process, "s3")
    try:
        lane = await parcels.world.open()
        await parcels.world.until(lambda: lane.lane.counters.retries >= 1)
    finally:
        await asyncio.to_thread(s3.start_process, "s3")
    await parcels.finish(lane)


@pytest.mark.parametrize("point", ["staged", pytest.param("sent", marks=pytest.mark.landing), "committed"])
async def test_a_killed_lane_leaves_no_reference_without_an_object(parcels: Parcels, point: str) -> None:
    for i in range(6):
        await parcels.post("ab"[i % 2], i, 100_000)
    parcels.world.faults.kill_at(point)
    await parcels.world.lane().killed()
    await parcels.finish(await parcels.world.open())


async def test_a_client_sees_how_many_wait_for_which_handler(kafka: Any, tmp_path: Path) -> None:
    async with closing(KafkaWorld(kafka.bootstrap, tmp_path)) as world:
        work = await retrying_counter(world, retry=RetryPolicy(immediate=0, delays=(3.0,)))
        app_id = world.app.layout.app_id
        assert await waiting(kafka.bootstrap, app_id) == {}
        work.hooks.before = Failing(world, {("a", 0): 1, ("b", 0): 1}, TransientError("away"))
        events = [world.event(work, key, i) for key in "abc" for i in range(3)]
        lane = await opened(world, *events)
        await world.settled(work.source)
        assert await waiting(kafka.bootstrap, app_id) == {"bench.count": 6}
        await finished(world, work, lane, events, lambda: lane.handled >= len(events) + 6)
        assert await waiting(kafka.bootstrap, app_id) == {}
