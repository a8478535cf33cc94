"""The claim checks that settings ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streams.model.claim_checks import ClaimChecks
from streams.settings import Settings

if TYPE_CHECKING:
    from streams.s3.blobs import S3Blobs


def blobs_of(settings: Settings) -> S3Blobs | None:
    """The bucket that settings name; None when there is no object store. The caller closes it.

    Raises MissingExtra.
    """
    where = settings.bucket()
    if where is None:
        return None
    from streams.s3.blobs import S3Blobs, S3Options  # without a bucket boto3 need not be there

    return S3Blobs(
        S3Options(
            where.name,
            where.endpoint,
            access_key=where.access_key,
            secret_key=where.secret_key,
            region=where.region,
        )
    )


@asynccontextmanager
async def claim_checks(settings: Settings) -> AsyncIterator[ClaimChecks | None]:
    """The claim checks of a worker or a client, for as long as it runs; None without an object store."""
    blobs = blobs_of(settings)
    if blobs is None:
        yield None
        return
    try:
        yield ClaimChecks(
            blobs,
            bucket=blobs.bucket,
            threshold=settings.claim_threshold,
            max_in_flight_bytes=settings.claim_bytes_in_flight,
            cache_bytes=settings.claim_cache_bytes,
        )
    finally:
        await blobs.close()
