"""Fills topics quickly: whole record batches are packed here and sent as they are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from aiokafka import AIOKafkaProducer

from streams.ports import TP

#: A record to be: partition, key, value, headers.
Packed = tuple[int, bytes, bytes, list[tuple[str, bytes]]]

_BATCH_BYTES = 1 << 19
_LARGEST_REQUEST = 16 << 20


class Packing:
    """Record batches of one topic, packed and not yet sent. The records are so many seconds old."""

    def __init__(self, topic: str, *, age: float = 0.0) -> None:
        self.records = 0
        self._topic = topic
        self._age = age
        self._batches: list[tuple[TP, Any]] = []

    def add(self, producer: AIOKafkaProducer, records: Iterable[Packed]) -> None:
        """Pack records."""
        timestamp = int((time.time() - self._age) * 1000)
        appends: dict[int, Any] = {}
        for partition, key, value, headers in records:
            append = appends.get(partition)
            if append is None or append(timestamp=timestamp, key=key, value=value, headers=headers) is None:
                batch = producer.create_batch()
                self._batches.append((TP(self._topic, partition), batch))
                append = appends[partition] = batch.append
                append(timestamp=timestamp, key=key, value=value, headers=headers)
            self.records += 1

    async def send(self, producer: AIOKafkaProducer) -> None:
        """Send all of it; when this returns the broker has it."""
        answers = [
            await producer.send_batch(batch, tp.topic, partition=tp.partition) for tp, batch in self._batches
        ]
        for answer in answers:
            await answer


async def fill(
    bootstrap: str, topic: str, records: Iterable[Packed], *, at_once: int, age: float = 0.0
) -> int:
    """Write records to a topic, packing `at_once` of them before they are sent; returns how many. They are
    so many seconds old.
    """
    written = 0
    async with packer(bootstrap) as producer:
        for part in _parts(records, at_once):
            packing = Packing(topic, age=age)
            packing.add(producer, part)
            await packing.send(producer)
            written += packing.records
    return written


def packer(bootstrap: str) -> AIOKafkaProducer:
    """A producer that takes whole batches; not started."""
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        max_batch_size=_BATCH_BYTES,
        max_request_size=_LARGEST_REQUEST,
    )


def _parts(records: Iterable[Packed], size: int) -> Iterator[list[Packed]]:
    rest = iter(records)
    while part := list(islice(rest, size)):
        yield part
