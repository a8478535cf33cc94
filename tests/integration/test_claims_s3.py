"""Claim checks on real S3, through an outage, a loss, an alteration and a sweep."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from streams.claims.checks import ClaimChecks
from streams.claims.claim import PREFIX, with_claim
from streams.claims.sweep import Sweepable, sweep
from streams.errors import BlobAltered, BlobMissing, BlobsUnavailable
from streams.local import Stack
from streams.s3 import S3Blobs
from streams.settings import LOCAL_BUCKET

PICTURE = bytes(range(256)) * 20_000


@pytest.fixture
def checks(blobs: S3Blobs) -> ClaimChecks:
    return ClaimChecks(blobs, bucket=LOCAL_BUCKET, max_in_flight_bytes=8 << 20, cache_bytes=0)


async def stored(checks: ClaimChecks, message_id: str, data: bytes) -> tuple[str, Mapping[str, bytes]]:
    """The object's name, and the headers of a message whose payload it is."""
    claim = checks.claim("orders.order.placed.v1", message_id, data, "image/png")
    await checks.check_in(claim, data)
    return claim.name, dict(with_claim([], claim))


async def test_payloads_of_all_sizes_go_in_and_out_at_once(checks: ClaimChecks) -> None:
    payloads = {f"order {n}/ü": PICTURE[: 10 ** (n % 7)] for n in range(14)}
    messages = await asyncio.gather(*(stored(checks, each, data) for each, data in payloads.items()))
    out = await asyncio.gather(*(checks.check_out(headers) for _, headers in messages))
    assert out == list(payloads.values())


async def test_an_outage_passes_but_no_lost_object(s3: Stack, blobs: S3Blobs, checks: ClaimChecks) -> None:
    name, message = await stored(checks, "o-1", PICTURE)
    await asyncio.to_thread(s3.stop_process, "s3")
    try:
        with pytest.raises(BlobsUnavailable):
            await checks.check_out(message)
        with pytest.raises(BlobsUnavailable):
            await stored(checks, "o-2", PICTURE)
    finally:
        await asyncio.to_thread(s3.start_process, "s3")
    assert await checks.check_out(message) == PICTURE

    await blobs.put(name, PICTURE[:-1] + b"?", "image/png")
    with pytest.raises(BlobAltered, match=name):
        await checks.check_out(message)
    await blobs.delete([name])
    with pytest.raises(BlobMissing, match=name):
        await checks.check_out(message)


async def test_a_sweep_leaves_what_a_row_names(blobs: S3Blobs, checks: ClaimChecks) -> None:
    kept, message = await stored(checks, "o 1", b"a gift")
    orphan, _ = await stored(checks, "o%2", b"never committed")

    async def rows() -> AsyncIterator[str]:
        yield kept

    young = await sweep(blobs, rows(), now=time.time, grace=3600.0, delete=True)
    assert (young.found[Sweepable.YOUNG].objects, young.deleted.objects) == (2, 0)
    dry = await sweep(blobs, rows(), now=time.time, grace=-10.0)
    assert (dry.found[Sweepable.ORPHAN].objects, dry.deleted.objects) == (1, 0)
    real = await sweep(blobs, rows(), now=time.time, grace=-10.0, delete=True)
    assert (real.deleted.objects, real.deleted.bytes) == (1, len(b"never committed"))
    assert [blob.name async for blob in blobs.scan(PREFIX)] == [kept]
    assert await checks.check_out(message) == b"a gift"
    assert await blobs.head(orphan) is None
