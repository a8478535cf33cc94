"""A bare transactional loop on aiokafka: read, decode, encode, send, commit. No state: the client's limit.

`send` sends each record by itself, as aiokafka's documentation shows it; `send_batch` packs records first.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.peers.workload import (
    COUNTED,
    MADE,
    PARTITIONS,
    PeerRun,
    decoder,
    encoder,
    run_from_environment,
)
from streams.host.loop import tune_process
from streams.model.layout import partition_of

#: A transaction takes what comes in this time, in seconds.
TRANSACTION = 0.1
MAX_RECORDS = 2000

Fetched = Mapping[TopicPartition, Sequence[Any]]


class RawLoop:
    """Takes batches from a consumer and passes them on in transactions."""

    def __init__(self, run: PeerRun, *, packed: bool) -> None:
        self._run = run
        self._packed = packed
        self._decode = decoder(run.form, MADE)
        self._encode = encoder(run.form, COUNTED)
        self._consumer = AIOKafkaConsumer(
            run.source,
            bootstrap_servers=run.bootstrap,
            group_id=run.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        self._producer = AIOKafkaProducer(
            bootstrap_servers=run.bootstrap,
            transactional_id=run.name,
            linger_ms=0 if packed else 5,
            max_batch_size=1 << 20 if packed else 1 << 17,
            retry_backoff_ms=10,  # the first batch of a transaction is often refused once, see producer.py
        )

    async def forever(self) -> None:
        """Transaction after transaction."""
        await self._producer.start()
        await self._consumer.start()
        while True:
            if fetched := await self._consumer.getmany(timeout_ms=500, max_records=MAX_RECORDS):
                await self._transaction(fetched)

    async def _transaction(self, fetched: Fetched) -> None:
        producer, consumer = self._producer, self._consumer
        offsets: dict[TopicPartition, int] = {}
        sent: list[asyncio.Future[Any]] = []
        send = self._send_packed if self._packed else self._send_each
        began = time.perf_counter()
        await producer.begin_transaction()
        while fetched:
            sent += await send(fetched)
            offsets |= {tp: records[-1].offset + 1 for tp, records in fetched.items()}
            if time.perf_counter() - began >= TRANSACTION:
                break
            fetched = await consumer.getmany(timeout_ms=0, max_records=MAX_RECORDS)
        await producer.send_offsets_to_transaction(offsets, self._run.name)
        for future in sent:  # a commit succeeds even when a batch has failed
            await future
        await producer.commit_transaction()

    def _passed_on(self, record: Any) -> dict[str, Any]:
        """A record as it is sent: its event, its key, and the headers with its id."""
        event = self._decode(record.value)
        event["n"] = 0
        return {"key": record.key, "value": self._encode(event), "headers": list(record.headers)}

    async def _send_each(self, fetched: Fetched) -> list[asyncio.Future[Any]]:
        send, output = self._producer.send, self._run.output
        return [
            await send(output, **self._passed_on(record))
            for records in fetched.values()
            for record in records
        ]

    async def _send_packed(self, fetched: Fetched) -> list[asyncio.Future[Any]]:
        create, output = self._producer.create_batch, self._run.output
        open_batches: dict[int, Any] = {}
        full: list[tuple[int, Any]] = []
        for records in fetched.values():
            for record in records:
                partition = partition_of(record.key, PARTITIONS)
                content = {"timestamp": None, **self._passed_on(record)}
                batch = open_batches.get(partition)
                if batch is None or batch.append(**content) is None:
                    if batch is not None:
                        full.append((partition, batch))
                    batch = open_batches[partition] = create()
                    batch.append(**content)
        send = self._producer.send_batch
        return [
            await send(batch, output, partition=number) for number, batch in [*full, *open_batches.items()]
        ]


async def main() -> None:
    """Run until the process is ended."""
    await RawLoop(run_from_environment(), packed=sys.argv[1] == "send_batch").forever()


if __name__ == "__main__":
    tune_process()
    uvloop.run(main())
