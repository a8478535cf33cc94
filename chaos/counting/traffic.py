"""What goes in and what comes out, seen from outside: a steady load, a watch of the outputs, the evidence."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from chaos.counting.checker import CountingEvidence, Produced
from chaos.counting.contestants import ReadRow
from chaos.counting.workload import PARTITIONS, TABLE, CountedEvent, event, output_topic
from streams.model.layout import Layout, partition_of
from streams.ports import Record
from streams.runtime.client import TopicReader

_TICK = 0.02


async def load(bootstrap: str, topic: str, numbers: range, seconds: float) -> None:
    """Produce the events of these numbers at a steady rate."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5)
    await producer.start()
    try:
        began, sent = time.monotonic(), 0
        while sent < len(numbers):
            due = min(len(numbers), int((time.monotonic() - began) / seconds * len(numbers)) + 1)
            for number in numbers[sent:due]:
                made = event(number)
                headers = [("ce_id", b"%d" % number), ("ce_source", b"counting")]
                await producer.send(topic, msgspec.json.encode(made), key=made.k.encode(), headers=headers)
            sent = due
            await asyncio.sleep(_TICK)
        await producer.flush()
    finally:
        await producer.stop()


class OutputWatch:
    """Notes when outputs of ids that were not seen before arrive at a reader of committed records."""

    def __init__(self, bootstrap: str, topic: str, events: int) -> None:
        self.arrivals: dict[int, list[float]] = defaultdict(list)
        self._bootstrap = bootstrap
        self._topic = output_topic(topic)
        self._due = Counter(partition_of(event(n).k.encode(), PARTITIONS) for n in range(events))
        self._seen: dict[int, set[int]] = defaultdict(set)

    @property
    def unfinished(self) -> list[int]:
        """Partitions in which something has not arrived yet."""
        return [partition for partition, due in self._due.items() if len(self._seen[partition]) < due]

    @property
    def last(self) -> float:
        """When something new last arrived; 0: never."""
        return max((times[-1] for times in self.arrivals.values() if times), default=0.0)

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        async with TopicReader(self._bootstrap, [self._topic]) as reader:
            while True:
                records = await reader.fetch()
                now = time.time()
                for record in records:
                    self._note(record, now)

    def _note(self, record: Record, now: float) -> None:
        number = _event_of(record).i
        if number not in self._seen[record.partition]:
            self._seen[record.partition].add(number)
            self.arrivals[record.partition].append(now)


async def members(admin: AIOKafkaAdminClient, group: str) -> int:
    """How many members a group has, once it has agreed on who does what; 0 until then."""
    try:
        answer: Any = (await admin.describe_consumer_groups([group]))[0]
    except GroupCoordinatorNotAvailableError:  # the broker's first group
        return 0
    described = answer.to_object()["groups"][0]
    return len(described["members"]) if described["state"] == "Stable" else 0


async def evidence(bootstrap: str, app_id: str, topic: str, read_row: ReadRow) -> CountingEvidence:
    """All that the topics hold by now; waits for transactions that are open."""
    produced = [
        Produced(made.i, made.k, record.partition, record.offset)
        async for record in _records(bootstrap, topic)
        for made in (_event_of(record),)
    ]
    rows: dict[str, int] = {}
    async for record in _records(bootstrap, Layout(app_id, PARTITIONS, PARTITIONS).changelog(TABLE)):
        key, count = read_row(record.key or b"", record.value or b"")
        rows[key] = count
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        committed = await admin.list_consumer_group_offsets(app_id)
    finally:
        await admin.close()
    return CountingEvidence(
        produced=produced,
        outputs=[_event_of(record).i async for record in _records(bootstrap, output_topic(topic))],
        rows=rows,
        committed={tp.partition: position.offset for tp, position in committed.items() if tp.topic == topic},
    )


async def _records(bootstrap: str, topic: str) -> AsyncIterator[Record]:
    async with TopicReader(bootstrap, [topic]) as reader:
        async for record in reader.to_end():
            yield record


def _event_of(record: Record) -> CountedEvent:
    return msgspec.json.decode(record.value or b"", type=CountedEvent)
