"""Producers of the load's clients, one for each codec, and their object store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer

from streams.settings import LOCAL_BUCKET, LOCAL_KEYS, Settings

#: What clients compress with: records of a key always with the same, so that they stay in order.
CODECS = (None, "gzip", "snappy", "lz4", "zstd")


@asynccontextmanager
async def producer(bootstrap: str, codec: str | None) -> AsyncIterator[Any]:
    """A producer that has started, until the block is left."""
    started = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        linger_ms=5,
        request_timeout_ms=10_000,
        max_batch_size=1 << 19,  # what a partition without leader has to wait with must not stop the rest
        compression_type=codec,
    )
    await started.start()
    try:
        yield started
    finally:
        await started.stop()


#: The share of orders that come with a file.
ATTACHED = 0.1
#: Bytes of a payload that still travels in its record: little, so that most files go to the object store.
_THRESHOLD = 1000


def payload_settings(endpoint: str) -> Settings:
    """How to reach the object store at this URL."""
    access_key, secret_key = LOCAL_KEYS
    return Settings(
        s3_bucket=LOCAL_BUCKET,
        s3_endpoint=endpoint,
        s3_access_key=access_key,
        s3_secret_key=secret_key,
        claim_threshold=_THRESHOLD,
    )


def payload_environment(endpoint: str) -> dict[str, str]:
    """The same for a worker's environment."""
    chosen = payload_settings(endpoint).model_dump(exclude_unset=True)
    return {f"STEADFAUST_{name.upper()}": str(value) for name, value in chosen.items()}
