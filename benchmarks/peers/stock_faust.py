"""The micro workload on stock Faust, as its documentation shows it: count events by key, pass each one on."""

from __future__ import annotations

import os
from typing import Any

import faust

from benchmarks.peers.workload import (
    COUNTED,
    MADE,
    PARTITIONS,
    Format,
    decoder,
    encoder,
    run_from_environment,
    tune_collector,
)

RUN = run_from_environment()


class FaustAvroCodec(faust.Codec):  # type: ignore[misc]  # Faust publishes no types here
    """Avro by fastavro, as Faust's guide to codecs does it; it reads events and writes counted ones."""

    def __init__(self) -> None:
        super().__init__()
        self._loads = decoder(Format.AVRO, MADE)
        self._dumps = encoder(Format.AVRO, COUNTED)

    def loads(self, s: bytes) -> Any:
        """An event."""
        return self._loads(s)

    def dumps(self, obj: Any) -> bytes:
        """A counted event."""
        return self._dumps(obj)


SERIALIZER = "json" if RUN.form is Format.JSON else FaustAvroCodec()

app = faust.App(
    RUN.name,
    broker=f"kafka://{RUN.bootstrap}",
    store="rocksdb://?driver=rocksdict",
    processing_guarantee=os.environ["BENCH_GUARANTEE"],
    datadir=RUN.var,
    topic_partitions=PARTITIONS,
    # Fewer and larger fetches, and no waiting: what makes it faster without changing what it promises.
    broker_max_poll_records=1000,
    producer_linger_ms=5,
    topic_disable_leader=True,
    stream_wait_empty=False,
    web_enabled=False,
)
source = app.topic(RUN.source, key_type=str, value_type=None, value_serializer=SERIALIZER)
counted = app.topic(RUN.output, key_type=str, value_serializer=SERIALIZER, partitions=PARTITIONS)
counts = app.Table("counts", default=int, partitions=PARTITIONS)


@app.agent(source)  # type: ignore[untyped-decorator]  # Faust publishes no types here
async def count(stream: Any) -> None:
    """Count and pass on."""
    async for event in stream.events():
        counts[event.key] += 1
        await counted.send(key=event.key, value={**event.value, "n": counts[event.key]})


tune_collector()
