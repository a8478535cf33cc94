"""The micro workload on stock Faust, as its documentation shows it: count events by key, pass each one on."""

from __future__ import annotations

import os
from typing import Any

import faust

from streams.settings import Settings

settings = Settings()
TOPIC = os.environ["BENCH_TOPIC"]

app = faust.App(
    settings.app_id,
    broker=f"kafka://{settings.brokers()}",
    store="rocksdb://?driver=rocksdict",
    processing_guarantee=os.environ.get("BENCH_GUARANTEE", "at_least_once"),
    datadir=str(settings.var / "workers" / settings.app_id),
    value_serializer="json",
    topic_partitions=settings.partitions,
    # Fewer and larger fetches, and no waiting: what makes it faster without changing what it promises.
    broker_max_poll_records=1000,
    producer_linger_ms=5,
    topic_disable_leader=True,
    stream_wait_empty=False,
    web_enabled=False,
)
source = app.topic(TOPIC, key_type=str, value_type=None, value_serializer="json")
counted = app.topic(f"{TOPIC}.counted", key_type=str, value_serializer="json", partitions=settings.partitions)
counts = app.Table("counts", default=int, partitions=settings.partitions)


@app.agent(source)  # type: ignore[untyped-decorator]  # Faust publishes no types here
async def count(stream: Any) -> None:
    """Count and pass on."""
    async for event in stream.events():
        counts[event.key] += 1
        await counted.send(key=event.key, value={**event.value, "n": counts[event.key]})
