"""What benchmarks do with Kafka from outside: preload a topic, watch another one grow, check what came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from benchmarks.peers.workload import (
    COUNTED,
    KEYS,
    MADE,
    PARTITIONS,
    Format,
    count_of,
    decoder,
    encoder,
    name_of,
)
from benchmarks.sections import NotMeasured
from streams.engine.life.positions.declared import BY_BROKER
from streams.kafka.topics import KafkaTopics
from streams.model.codecs import fingerprint_of
from streams.model.envelope import FINGERPRINT, ID, SOURCE
from streams.model.layout import partition_of
from streams.ports import STAMPED, TopicSpec

SAMPLE_INTERVAL = 0.02
#: A topic that has all its events and has not grown for this long is complete, in seconds.
SETTLED_AFTER = 0.5
#: What was sent becomes visible with its transaction, after this many seconds at most.
COMMITTED_WITHIN = 20.0


async def create(bootstrap: str, topic: str) -> None:
    """Create a topic of the workload."""
    async with KafkaTopics(bootstrap) as topics:
        await topics.create([TopicSpec(topic, PARTITIONS, 1, {STAMPED: BY_BROKER})])


async def delete_topics_of(bootstrap: str, run: str) -> None:
    """Delete a run's topics: every peer's program puts its name into those that it makes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([name for name in await admin.list_topics() if run in name])
    finally:
        await admin.close()


async def preload(bootstrap: str, topic: str, form: Format, events: int) -> None:
    """Create a topic and fill it with events that carry their ids."""
    await create(bootstrap, topic)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 19)
    await producer.start()
    encode = encoder(form, MADE)
    schema = [(FINGERPRINT, fingerprint_of(json.dumps(MADE)).encode())] if form is Format.AVRO else []
    try:
        batches = [producer.create_batch() for _ in range(PARTITIONS)]
        for i in range(events):
            name = name_of(i)
            record = {
                "timestamp": int(time.time() * 1000),
                "key": name.encode(),
                "value": encode({"k": name, "i": i}),
                "headers": [(ID, b"%d" % i), (SOURCE, b"bench"), *schema],
            }
            partition = partition_of(name.encode(), PARTITIONS)
            if batches[partition].append(**record) is None:
                await producer.send_batch(batches[partition], topic, partition=partition)
                batches[partition] = producer.create_batch()
                batches[partition].append(**record)
        for partition, batch in enumerate(batches):
            await producer.send_batch(batch, topic, partition=partition)
        await producer.flush()
    finally:
        await producer.stop()


async def watch_growth(
    bootstrap: str, topic: str, events: int, cpu: Callable[[], float], timeout: float
) -> list[Sample]:
    """The samples at which the topic had grown, until it has all events and grows no more.

    `cpu` tells the processor time that the program has used, and raises when it has ended. Raises
    NotMeasured when the topic is not complete after `timeout` seconds.
    """
    samples: list[Sample] = []
    try:
        async with _consumer(bootstrap) as consumer, asyncio.timeout(timeout):
            while not _complete(samples, events):
                used = cpu()
                end = sum((await consumer.end_offsets(_partitions(topic))).values())
                if end and (not samples or end != samples[-1].end):
                    samples.append(Sample(time.perf_counter(), end, used))
                await asyncio.sleep(SAMPLE_INTERVAL)
    except TimeoutError:
        end = samples[-1].end if samples else 0
        raise NotMeasured(f"{end:,} of {events:,} events came out within {timeout:.0f} s") from None
    return samples


def _complete(samples: list[Sample], events: int) -> bool:
    return (
        bool(samples) and samples[-1].end >= events and time.perf_counter() - samples[-1].at > SETTLED_AFTER
    )


async def check_output(
    bootstrap: str, topic: str, form: Format, events: int, *, counted: bool = True
) -> None:
    """Read what is committed: every event must be there, none twice, and all with the counts that keys have.

    Counts are left alone when nothing has `counted`. Raises NotMeasured.
    """
    check = OutputCheck(form, events, counted=counted)
    async with _consumer(bootstrap) as plain:  # another reader gets no ends of open transactions
        ends = await plain.end_offsets(_partitions(topic))
    options = {"isolation_level": "read_committed", "max_partition_fetch_bytes": 1 << 23}
    async with _consumer(bootstrap, **options) as consumer:
        consumer.assign(_partitions(topic))
        await consumer.seek_to_beginning()
        progress = time.perf_counter()
        while await _behind(consumer, ends) and time.perf_counter() - progress < COMMITTED_WITHIN:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                progress = time.perf_counter()
                check.take(records)
    check.conclude()


class OutputCheck:
    """What came out, record after record: which events, and whether each has the count of its key.

    The counts that come out are the state of a peer: those of a key must be 1, 2, 3 and so on, in this order,
    each with the event that was the key's first, second, third.
    """

    def __init__(self, form: Format, events: int, *, counted: bool) -> None:
        self._events = events
        self._counted = counted
        self._decode = decoder(form, COUNTED)
        self._seen = bytearray(events)
        self._keys = [name_of(number).encode() for number in range(KEYS)]
        self._counts = [0] * KEYS
        self._wrong = 0

    def take(self, records: Iterable[Any]) -> None:
        """Take records of a partition, in their order."""
        decode, counted = self._decode, self._counted
        seen, keys, counts = self._seen, self._keys, self._counts
        for record in records:
            event = decode(record.value)
            i = event["i"]
            seen[i] += 1
            place = i % KEYS
            count = counts[place] = counts[place] + 1
            right = record.key == keys[place] and (not counted or event.get("n") == count == count_of(i))
            self._wrong += not right

    def conclude(self) -> None:
        """Raise NotMeasured unless all is as it must be."""
        missing, doubled = self._seen.count(0), sum(1 for times in self._seen if times > 1)
        of = f"of {self._events:,} events"
        if missing or doubled:
            raise NotMeasured(f"{of} {missing:,} did not come out and {doubled:,} more than once")
        if self._wrong:
            raise NotMeasured(f"{of} {self._wrong:,} came out with a key or a count that is not theirs")


@asynccontextmanager
async def _consumer(bootstrap: str, **options: Any) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **options)
    await consumer.start()
    # Its tasks begin now: stopping a consumer that has not begun cancels its caller.
    await asyncio.sleep(0)
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _behind(consumer: Any, ends: Mapping[TopicPartition, int]) -> bool:
    return any([await consumer.position(tp) < end for tp, end in ends.items()])


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


#: Shares of the growth between which it counts. Before, caches fill and code is compiled. After, a program
#: that works ahead of what it has written, as the lane does by some ten thousand events, only writes.
COUNTED_SHARE = (0.3, 0.8)
#: The same of a program that is compiled while it runs. It gets more events, so that this is over by then.
COUNTED_SHARE_WARM = (0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at a moment.

    Attributes:
        at: seconds on a clock that only goes forward.
        end: the sum of the topic's end offsets.
        cpu: seconds of processor time that the program had used.
    """

    at: float
    end: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a program was in the counted part.

    Attributes:
        per_second: events.
        cpu: seconds of processor time for 100,000 events.
    """

    per_second: float
    cpu: float


def rate_of(samples: Sequence[Sample], events: int, counted: tuple[float, float] = COUNTED_SHARE) -> Rate:
    """The rate over the `counted` part of the growth; `samples` are those at which the topic grew.

    Markers of transactions are in the end offsets too, so the share of the growth counts, not the offset.

    Raises:
        ValueError: the topic grew in so few steps that there is no rate to tell.
    """
    end = samples[-1].end
    first, last = (next(sample for sample in samples if sample.end >= share * end) for share in counted)
    if first.end > sum(counted) / 2 * end or last.end > (1 + counted[1]) / 2 * end:
        raise ValueError(f"the topic grew by leaps ({len(samples)} steps in all): give it more events")
    grown = events * (last.end - first.end) / end
    return Rate(grown / (last.at - first.at), (last.cpu - first.cpu) / grown * 100_000)
