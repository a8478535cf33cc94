"""Pages of topics, and the timeline's look through them, on a real broker: whatever a log may hold."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from streams.control.base.scans import Question
from streams.control.base.windows import ReadPage, Window
from streams.errors import TopicMismatch
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.model.row_keys import row_key
from streams.ports import TP, Damaged, Outgoing, TopicSpec
from streams.testing.batches import CODECS, batch, record
from streams.worker import browsing
from streams.worker.browsing import browse, logs
from streams.worker.timeline import scan
from tests.hostile import DAMAGED, three
from tests.kafka_admin import truncate
from tests.raw_kafka import in_the_log, produced

_numbers = count(time.time_ns())
MINUTE = 60_000
NOW = int(time.time() * 1000)


class Ground:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.cluster = KafkaCluster(stack.bootstrap)

    async def topic(self, partitions: int = 1) -> str:
        name = f"browsed-{next(_numbers)}"
        async with KafkaTopics(self.stack.bootstrap) as topics:
            await topics.create([TopicSpec(name, partitions, 1)])
        return name

    async def write(self, tp: TP, numbers: Sequence[int], *, key: bytes | None = None, at: int = NOW) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.stack.bootstrap, linger_ms=5) as producer:
            sent = [
                await producer.send(tp.topic, b"%d" % n, key, tp.partition, timestamp_ms=at + n)
                for n in numbers
            ]
            for each in sent:
                await each

    async def transaction(
        self, tp: TP, numbers: Sequence[int], *, key: bytes | None = None, name: str = ""
    ) -> Any:
        """One that is open; its producer."""
        producer = self.cluster.transactions(name or f"t-{next(_numbers)}")
        await producer.start()
        await producer.begin()
        await producer.send({tp: [Outgoing(key, b"%d" % n, ()) for n in numbers]})
        return producer

    async def aborted(self, tp: TP, numbers: Sequence[int]) -> None:
        name = f"t-{next(_numbers)}"
        producer = await self.transaction(tp, numbers, name=name)
        await producer.discard()
        successor = self.cluster.transactions(name)
        await successor.start()
        await successor.discard()

    async def page(self, *tps: TP, limit: int = 5, **window: Any) -> ReadPage:
        window = {"places": {}, "backwards": True, **window}
        return await browse(self.cluster, Window(tps, limit=limit, **window))


@pytest.fixture
async def ground(kafka: Stack) -> AsyncIterator[Ground]:
    made = Ground(kafka)
    yield made
    await made.cluster.close()


@pytest.fixture
async def tp(ground: Ground) -> TP:
    return TP(await ground.topic(), 0)


def numbers(seen: ReadPage) -> list[int]:
    return [int(each.value or b"") for each in seen.records]


async def through(ground: Ground, *tps: TP, backwards: bool, limit: int = 7) -> list[int]:
    found: list[int] = []
    places: dict[TP, int] = {}
    for _ in range(100):
        seen = await ground.page(*tps, limit=limit, places=places, backwards=backwards)
        found += numbers(seen)
        edges = {tp: span[0 if backwards else 1] for tp, span in seen.spans.items()}
        if all(
            at == (seen.logs[tp].begin if backwards else seen.logs[tp].stable) for tp, at in edges.items()
        ):
            return found
        places = edges
    raise AssertionError(f"the pages have no end: {places}")


async def test_pages_go_to_the_beginning_and_back_again(ground: Ground, tp: TP) -> None:
    await ground.write(tp, range(40))
    assert numbers(await ground.page(tp)) == [39, 38, 37, 36, 35]
    assert await through(ground, tp, backwards=True) == list(range(39, -1, -1))
    assert await through(ground, tp, backwards=False) == list(range(40))


async def test_pages_pass_over_markers_and_aborted_records(ground: Ground, tp: TP) -> None:
    for n in range(0, 40, 10):
        done = await ground.transaction(tp, range(n, n + 3))
        await done.commit()
        await done.discard()
        await ground.aborted(tp, range(1000, 1060))
    expected = [n + i for n in range(0, 40, 10) for i in range(3)]
    assert numbers(await ground.page(tp)) == expected[:-6:-1]  # behind sixty offsets without a record
    assert await through(ground, tp, backwards=True) == expected[::-1]
    assert await through(ground, tp, backwards=False) == expected


async def test_records_of_several_partitions_come_in_order_of_time(ground: Ground) -> None:
    topic = await ground.topic(3)
    tps = [TP(topic, n) for n in range(3)]
    await ground.write(tps[0], range(0, 30, 3))
    await ground.write(tps[1], range(1, 30, 3))
    assert numbers(await ground.page(*tps)) == [28, 27, 25, 24, 22]
    backwards = await through(ground, *tps, backwards=True)
    assert backwards == sorted(backwards, reverse=True)
    assert len(backwards) == 20
    forwards = await through(ground, *tps, backwards=False)
    assert forwards == backwards[::-1]


async def test_records_of_an_open_transaction_are_hidden_until_its_end(ground: Ground, tp: TP) -> None:
    await ground.write(tp, [1, 2])
    producer = await ground.transaction(tp, [3, 4])
    await ground.write(tp, [5])
    seen = await ground.page(tp)
    assert numbers(seen) == [2, 1]
    assert (seen.logs[tp].stable, seen.logs[tp].end) == (2, 5)
    await producer.commit()
    await producer.discard()
    seen = await ground.page(tp)
    assert numbers(seen) == [5, 4, 3, 2, 1]
    assert seen.logs[tp].stable == seen.logs[tp].end == 6


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
async def test_compressed_batches_are_read_and_cut_at_the_page(ground: Ground, tp: TP, codec: str) -> None:
    for at in (0, 10):
        raw = batch([record(n, b"k", b"%d" % (at + n)) for n in range(10)], codec=codec, timestamp=NOW)
        assert await produced(ground.stack.bootstrap, tp, raw) == at
    assert numbers(await ground.page(tp, places={tp: 14})) == [13, 12, 11, 10, 9]
    assert numbers(await ground.page(tp, places={tp: 8}, backwards=False, limit=3)) == [8, 9, 10]


async def test_places_outside_of_the_log_are_no_errors(ground: Ground, tp: TP) -> None:
    for backwards in (True, False):
        seen = await ground.page(tp, backwards=backwards)
        assert (seen.records, seen.spans, seen.stopped) == ([], {tp: (0, 0)}, "")
    await ground.write(tp, range(20))
    await truncate(ground.stack.bootstrap, tp, 10)
    assert numbers(await ground.page(tp, places={tp: 0}, backwards=False, limit=2)) == [10, 11]
    seen = await ground.page(tp, places={tp: 12})
    assert (numbers(seen), seen.spans[tp]) == ([11, 10], (10, 12))
    beyond = await ground.page(tp, places={tp: 999}, backwards=False)
    assert (beyond.records, beyond.spans[tp]) == ([], (20, 20))
    assert (beyond.logs[tp].begin, beyond.logs[tp].end) == (10, 20)


async def test_records_from_a_time_on(ground: Ground) -> None:
    topic, now = await ground.topic(2), int(time.time() * 1000)  # this module may be older than a minute
    tps = [TP(topic, 0), TP(topic, 1)]
    await ground.write(tps[0], range(10), at=now - 10 * MINUTE)
    await ground.write(tps[0], range(10, 20), at=now)
    await ground.write(tps[1], [99], at=now - 10 * MINUTE)
    seen = await ground.page(*tps, since_ms=now - MINUTE, backwards=False, limit=3)
    assert numbers(seen) == [10, 11, 12]
    assert seen.spans[tps[1]] == (1, 1)
    assert (await logs(ground.cluster, tps))[tps[0]].recent == 10


async def test_the_records_of_a_key_are_found_among_many_others(ground: Ground, tp: TP) -> None:
    await ground.write(tp, [1], key=b"wanted")
    await ground.write(tp, range(100, 15_000), key=b"other")
    await ground.write(tp, [2], key=b"wanted")
    seen = await ground.page(tp, key=b"wanted")
    assert numbers(seen) == [2, 1]
    assert (seen.looked, seen.stopped) == (seen.logs[tp].end, "")


async def test_in_a_changelog_the_rows_of_a_key_are_found(ground: Ground, tp: TP) -> None:
    await ground.write(tp, [1], key=row_key(b"k1", b"a"))
    await ground.write(tp, [2], key=row_key(b"k10", b""))
    await ground.write(tp, [3], key=row_key(b"k1"))
    assert numbers(await ground.page(tp, key=b"k1", rows=True)) == [3, 1]


async def test_what_cannot_be_read_stands_in_its_place(ground: Ground, tp: TP) -> None:
    await ground.write(tp, [1])
    raw = batch(three(DAMAGED["a header without a name"]), timestamp=NOW)
    await in_the_log(ground.stack.bootstrap, ground.stack.var.kafka, tp, raw)
    await ground.write(tp, [2])
    seen = await ground.page(tp)
    sound = [each.value for each in seen.records if not isinstance(each, Damaged)]
    assert sound == [b"2", b"third", b"first", b"1"]
    damaged = seen.records[2]
    assert isinstance(damaged, Damaged)
    assert (damaged.offset, bool(damaged.why)) == (2, True)


async def test_a_bounded_page_says_so_and_has_the_newest(
    ground: Ground, tp: TP, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ground.write(tp, range(2_000))
    monkeypatch.setattr(browsing, "MOST_BYTES", 100)
    seen = await ground.page(tp, backwards=False, limit=1_000)
    assert "no more bytes" in seen.stopped
    assert 0 < len(seen.records) < 1_000
    first, behind = seen.spans[tp]
    assert (first, behind) == (0, len(seen.records))
    following = await ground.page(tp, places={tp: behind}, backwards=False, limit=1_000)
    assert numbers(following)[0] == behind
    newest = await ground.page(tp, limit=1_000)
    assert "no more bytes" in newest.stopped
    assert (numbers(newest), newest.spans[tp]) == ([1999], (1999, 2000))


async def test_a_page_leaves_nothing_behind_that_reads_on(ground: Ground, tp: TP) -> None:
    await ground.write(tp, range(10))
    await ground.page(tp)  # what workers share is connected now
    before = asyncio.all_tasks()
    for backwards in (True, False):
        await ground.page(tp, backwards=backwards)
    assert asyncio.all_tasks() == before


async def test_a_topic_that_is_not_there_is_named(kafka: Stack) -> None:
    cluster = KafkaCluster(kafka.bootstrap, KafkaOptions(metadata_timeout=0.3))
    with pytest.raises(TopicMismatch, match="nowhere"):
        await browse(cluster, Window((TP("nowhere", 0),), {}, True, 5))
    await cluster.close()


# -- the timeline -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
async def test_the_timeline_finds_a_key_within_compressed_batches(ground: Ground, tp: TP, codec: str) -> None:
    plain = [record(n, b"order-%d" % n, b"%d" % n + b" " * 50) for n in range(20)]
    await produced(ground.stack.bootstrap, tp, batch(plain, codec=codec, timestamp=NOW))
    await produced(ground.stack.bootstrap, tp, batch([record(0, b"other", b"-")], codec=codec, timestamp=NOW))
    found = await scan(ground.cluster, Question((tp,), NOW - MINUTE, (b"order-7",)))
    assert [(each.offset, each.key) for each in found.records] == [(7, b"order-7")]
    assert (found.looked, found.stopped) == (21, "")


async def test_the_timeline_ends_before_an_open_transaction(ground: Ground, tp: TP) -> None:
    await ground.write(tp, [1], key=b"k")
    producer = await ground.transaction(tp, [2], key=b"k")
    await ground.write(tp, [3], key=b"k")
    question = Question((tp,), NOW - MINUTE, (b"k",))
    found = await scan(ground.cluster, question)
    assert ([each.value for each in found.records], found.looked, found.stopped) == ([b"1"], 1, "")
    await producer.commit()
    await producer.discard()
    found = await scan(ground.cluster, question)
    assert [each.value for each in found.records] == [b"1", b"2", b"3"]
