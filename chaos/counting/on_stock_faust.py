"""The counting on stock Faust, set up for safety as far as its documentation tells how."""

from __future__ import annotations

import os
from typing import Any

import faust

from chaos.counting.workload import DIRECTORY, GUARANTEE, TABLE, input_topic, output_topic
from streams.settings import Settings

settings = Settings()
app = faust.App(
    settings.app_id,
    broker=f"kafka://{settings.brokers()}",
    store="rocksdb://?driver=rocksdict",
    processing_guarantee=os.environ[GUARANTEE],
    datadir=os.environ[DIRECTORY],
    value_serializer="json",
    topic_partitions=settings.partitions,
    topic_disable_leader=True,
    broker_session_timeout=settings.session_timeout,
    broker_heartbeat_interval=settings.heartbeat,
    broker_rebalance_timeout=settings.session_timeout * 2,
    # What is not committed comes again: oftener than every 2.8 s, the default, leaves less of it.
    broker_commit_interval=0.5,
    # Not to be turned off when events must not be processed twice, says the documentation.
    stream_wait_empty=True,
    # Outputs go out, and have arrived, before the offset is committed; a transaction sees to that by itself.
    stream_publish_on_commit=os.environ[GUARANTEE] == "at_least_once",
    # In transactions the check takes a position that was not asked for yet for a lost changelog (issue 658),
    # and the worker crashes again and again.
    recovery_consistency_check=os.environ[GUARANTEE] == "at_least_once",
    web_enabled=False,
)
source = app.topic(input_topic(), key_type=str, value_type=None, value_serializer="json")
counted = app.topic(
    output_topic(input_topic()), key_type=str, value_serializer="json", partitions=settings.partitions
)
counts = app.Table(TABLE, default=int, partitions=settings.partitions)


@app.agent(source)  # type: ignore[untyped-decorator]  # Faust publishes no types here
async def count(stream: Any) -> None:
    """Count and pass on."""
    async for event in stream.events():
        counts[event.key] += 1
        await counted.send(key=event.key, value={**event.value, "n": counts[event.key]})
