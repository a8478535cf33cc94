"""Parcels through real Kafka, RocksDB and S3."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_checker import check_store
from lane_kafka import KafkaWorld
from lane_parcels import BUCKET, Parcels
from lane_workloads import carrying
from lane_worlds import closing

from streams.local import Stack, local_stack
from streams.local.s3 import ACCESS_KEY, SECRET_KEY
from streams.s3 import S3Blobs, S3Options


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


async def finish(parcels: Parcels, lane: Any) -> None:
    await parcels.settled()
    await lane.stop()
    await parcels.check()
    await check_store(parcels.world)


async def test_parcels_to_5_mb_come_out_as_they_went_in(parcels: Parcels) -> None:
    for i in range(14):
        await parcels.post("abc"[i % 3], i, min(10 ** (i % 7 + 1), 5_000_000))
    await finish(parcels, await parcels.world.open())


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
    await finish(parcels, lane)


@pytest.mark.parametrize("point", ["staged", pytest.param("sent", marks=pytest.mark.landing), "committed"])
async def test_a_killed_lane_leaves_no_reference_without_an_object(parcels: Parcels, point: str) -> None:
    for i in range(6):
        await parcels.post("ab"[i % 2], i, 100_000)
    parcels.world.faults.kill_at(point)
    await parcels.world.lane().killed()
    await finish(parcels, await parcels.world.open())
