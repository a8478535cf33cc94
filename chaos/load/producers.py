"""The producers of the load's clients, one for each codec that clients compress with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer

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
