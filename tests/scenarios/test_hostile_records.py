"""Whatever clients write between good records: nothing stops, every good one is handled, every bad one is
accounted for.

`STEADFAUST_HOSTILE` says how many records, `STEADFAUST_HOSTILE_SEED` which. Without them they are 5000 that
nobody knows in `make verify`, and otherwise fewer and the same.
"""

import asyncio
import json
import os
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from agents.choreographies import stock_first
from agents.messages import OrderCancelled, OrderConfirmed, StockReceived
from agents.order_saga import orchestrated
from streams.engine.staging.repartition import ORIGIN
from streams.host.client import TopicReader, waiting
from streams.kafka.cluster import KafkaCluster
from streams.local import declared, declared_buckets, local_stack
from streams.local.s3 import ACCESS_KEY, SECRET_KEY
from streams.model.layout import dead_letter_topic
from streams.ports import TP
from streams.s3 import S3Blobs, S3Options
from tests import effort
from tests.scenarios import hostile_bad, hostile_good  # noqa: F401 - they declare the kinds
from tests.scenarios.hostile_clients import Clients, Position
from tests.scenarios.hostile_records import BUCKET, HANDLERS, KINDS, OPERATIONS, Fate, Thrower, Thrown, thrown
from tests.scenarios.world import APP, PARTITIONS, Worker, World
from tests.waiting import BOUND, eventually

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
COUNT = int(os.environ.get("STEADFAUST_HOSTILE", "5000" if effort.is_all() else "1500"))
ANY = secrets.randbelow(1_000_000) if effort.is_all() else 1
SEED = int(os.environ.get("STEADFAUST_HOSTILE_SEED", "0")) or ANY
#: Seconds that all of it may take once it is thrown; each record has a fiftieth besides.
THROWN = BOUND + COUNT / 50
#: What every message is read from.
TOPICS = sorted({route.message.TOPIC for route in (*stock_first.routes.values(), *orchestrated)})
PATIENCE = "2"

Letters = Mapping[Position, list[Any]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One with an object store."""
    var = tmp_path_factory.mktemp("hostile")
    with local_stack(var, processes=declared(PROJECT), buckets=declared_buckets(PROJECT)) as stack:
        world = World(stack.bootstrap, stack.url("gateway"), var)
        world.environment["STEADFAUST_SCHEMA_PATIENCE"] = PATIENCE
        world.environment["S3"] = stack.url("s3")
        with world.supplied():
            yield world


async def throw(world: World) -> dict[Position, Thrown]:
    """Throw all of it; returns what lies where."""
    blobs = S3Blobs(S3Options(BUCKET, world.environment["S3"], ACCESS_KEY, SECRET_KEY))
    try:
        async with Clients(world.bootstrap, SEED) as clients:
            for records in thrown(Thrower(SEED), COUNT, at_once=max(50, min(1000, COUNT // 4))):
                uploads = [each.upload for each in records if each.upload is not None]
                await asyncio.gather(*(blobs.put(name, data, "") for name, data in uploads))
                await clients.throw(records)
            assert len(clients.used) == 2 * 5 + 6 + 1, "every client was used in every codec"
            return clients.lie
    finally:
        await blobs.close()


def expect(world: World, lie: Mapping[Position, Thrown]) -> list[str]:
    """Tell the world what is to come of the good ones; returns the orders."""
    orders = {each.order[0]: each.order[1:] for each in lie.values() if each.order}
    world.expected.update(orders)
    for each in lie.values():
        if each.stock:
            world.received[each.stock[0]] += each.stock[1]
    return list(orders)


def until_done(world: World, orders: list[str]) -> None:
    """Wait until everything is read, nothing waits, and all orders have come to an end."""

    def done() -> bool:
        if not asyncio.run(at_ends(world)) or asyncio.run(waiting(world.bootstrap, APP)):
            return False
        return world.settled(orders) == len(orders)

    eventually(done, "everything is read, and nothing waits", every=1.0, bound=THROWN)


async def at_ends(world: World) -> bool:
    cluster = KafkaCluster(world.bootstrap)
    try:
        tps = [TP(topic, n) for topic in (*TOPICS, OPERATIONS) for n in range(PARTITIONS)]
        return await cluster.committed(APP, tps) == await cluster.end_offsets(tps)
    finally:
        await cluster.close()


def dead_letters(world: World) -> Letters:
    """Every dead letter of every topic, by the position that it says that it came from."""

    async def read() -> Letters:
        async with AIOKafkaConsumer(
            bootstrap_servers=world.bootstrap,
            isolation_level="read_committed",
            max_partition_fetch_bytes=8 << 20,
        ) as consumer:
            tps = [TopicPartition(dead_letter_topic(topic), 0) for topic in TOPICS]
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            ends = await consumer.end_offsets(tps)
            found: dict[Position, list[Any]] = defaultdict(list)
            while any([await consumer.position(tp) < ends[tp] for tp in tps]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for letter in records:
                        said = dict(letter.headers)
                        topic, where = said["dlq-source-topic"].decode(), said["dlq-source-partition"]
                        assert letter.topic == dead_letter_topic(topic)
                        found[topic, int(where), int(said["dlq-source-offset"])].append(letter)
            return found

    return asyncio.run(read())


def check_sent_on(world: World, lie: Mapping[Position, Thrown]) -> None:
    """What came in a wrong partition was sent on once, and nobody else has written to the topics."""
    left: dict[Any, list[Thrown]] = defaultdict(list)
    for each in lie.values():
        if each.home is not None:
            left[each.topic, each.home, each.key, each.value, _plain(each)].append(each)
    through = {f"{APP}-{topic}-repartition": topic for topic, *_ in left}

    async def read() -> None:
        async with TopicReader(world.bootstrap, [*HANDLERS, *through]) as reader:
            async for record in reader.to_end():
                if record.topic in through:
                    *headers, origin = _encoded(record)
                    assert origin[0] == ORIGIN.encode()
                    topic = through[record.topic]
                    left[topic, record.partition, record.key, record.value, tuple(headers)].pop()
                elif (record.topic, record.partition, record.offset) not in lie:
                    is_stock = record.topic == StockReceived.TOPIC and _is_first(record)
                    assert is_stock, f"a record that nobody has thrown: {record}"

    asyncio.run(read())
    assert not any(left.values()), "all were sent on"


def _encoded(record: Any) -> tuple[Any, ...]:
    return tuple((name.encode(), value) for name, value in record.headers)


def _plain(each: Thrown) -> tuple[Any, ...]:
    return tuple(each.headers)


def _is_first(record: Any) -> bool:
    return dict(record.headers).get("ce_id", b"").startswith(b"receipt-")


def check_letter(each: Thrown, letters: list[Any], at: Position) -> None:
    place = f"{each.kind} at {at}"
    added = [dict(letter.headers) for letter in letters]
    handlers = Counter(said["dlq-handler"].decode() for said in added)
    assert handlers == Counter(each.handlers), place
    for letter, said in zip(letters, added, strict=True):
        assert said["dlq-error-type"].decode() in each.error, f"{place}: {said['dlq-error-message']!r}"
        if each.is_damaged:
            check_damaged(each, letter, place)
            continue
        assert letter.key == each.key, place
        if (omitted := said.get("dlq-omitted-bytes")) and each.whole is not None:
            assert int(omitted) > len(each.value or b""), place
            assert letter.value is None, place
            continue
        assert letter.value == each.value, place
        came = _encoded(letter)[: len(each.headers)]
        assert came == _plain(each), place
        more = [name for name, _ in letter.headers[len(came) :]]
        assert len(more) == 11, place
        assert all(name.startswith("dlq-") for name in more), place


def check_damaged(each: Thrown, letter: Any, place: str) -> None:
    """The bytes of what could not be read."""
    form = dict(letter.headers)["dlq-raw"]
    if each.whole is not None:
        assert form == b"record batch", place
        broker_sets = letter.value[:23] + each.whole[23:35] + letter.value[35:43] + each.whole[43:]
        assert letter.value == broker_sets, f"{place}: all but what the broker has set"
        return
    assert form == b"record", place
    assert letter.key == each.key, place
    deltas = (each.raw(delta) for delta in range(20))
    assert letter.value in deltas, place


def check_stamps(world: World, lie: Mapping[Position, Thrown], began: float) -> None:
    """What was stamped with old times has the stamps of brokers: retention deletes none of it unread."""
    old = {at for at, each in lie.items() if each.kind == "good, of an old clock"}
    found: dict[Position, int] = {}

    async def read() -> None:
        async with TopicReader(world.bootstrap, {topic for topic, *_ in old}) as reader:
            async for record in reader.to_end():
                found[record.topic, record.partition, record.offset] = record.timestamp

    asyncio.run(read())
    assert old, "records with old stamps were thrown"
    assert old <= found.keys(), "none was deleted"
    assert all(found[at] >= began * 1000 for at in old)


def check_told(worker: Worker, lie: Mapping[Position, Thrown]) -> None:
    """Operations and announcements that are none are in the log."""
    logged = Counter((event["partition"], event["offset"]) for event in worker.events("operation_unreadable"))
    bad = [at for at, each in lie.items() if each.fate is Fate.PASSED_BY]
    assert logged == Counter(at[1:] for at in bad if at[0] == OPERATIONS)
    announced = {event["offset"] for event in worker.events("announcement_unreadable")}
    assert announced == {offset for topic, _, offset in bad if topic != OPERATIONS}
    refused = Counter(event["letter"] for event in worker.events("operation"))
    assert refused == Counter(each.letter for each in lie.values() if each.fate is Fate.REFUSED)


def check_untroubled(worker: Worker) -> None:
    for event in ("lane_reopens", "lane_waits", "lane_stopped", "lane_quarantined", "breaker_changed"):
        assert not worker.events(event), event
    assert worker.process.poll() is None
    (started,) = worker.events("worker_started")
    eventually(lambda: not reasons(started["web"]), "the worker is ready")


def reasons(web: str) -> list[str]:
    """Why a worker is not ready: it says that its lanes are open a moment before it has joined its group."""
    try:
        with urlopen(f"{web.rstrip('/')}/health/ready", timeout=BOUND) as response:
            assert response.status == 200
            return []
    except HTTPError as refused:
        with refused:
            said: list[str] = json.load(refused)["reasons"]
        assert not any("without progress" in each for each in said), said
        return said


@pytest.mark.promise(
    "hostile-records", "`STEADFAUST_HOSTILE=100000` sets the number, `STEADFAUST_HOSTILE_SEED` repeats a run"
)
@pytest.mark.promise("old-timestamps", "stamps in seconds, and years old")
@pytest.mark.timeout(int(2 * THROWN) + 300)
def test_hostile_records_stop_nothing_and_each_is_accounted_for(world: World) -> None:
    print(f"STEADFAUST_HOSTILE_SEED={SEED} STEADFAUST_HOSTILE={COUNT}")  # noqa: T201 - shown when it fails
    began = time.time() - 1
    worker = world.start_worker()
    world.until_shared([worker])
    lie = asyncio.run(throw(world))
    assert {each.kind for each in lie.values()} == set(KINDS), "every kind was thrown"
    orders = expect(world, lie)
    until_done(world, orders)
    check_untroubled(worker)
    check_told(worker, lie)
    check_stamps(world, lie, began)
    letters = dict(dead_letters(world))
    outcomes = Counter(
        record.key.decode() for record in world.read(OrderConfirmed.TOPIC, OrderCancelled.TOPIC)
    )
    check_sent_on(world, lie)
    for at, each in lie.items():
        found = letters.pop(at, [])
        if each.fate is Fate.DEAD:
            check_letter(each, found, at)
        else:
            assert not found, f"{each.kind} at {at} is a dead letter: {dict(found[0].headers)}"
        if each.order:
            assert outcomes[each.order[0]] == 1, f"{each.kind} at {at}"
    assert not letters, "dead letters of nothing that was thrown"
    world.check()
    assert asyncio.run(at_ends(world)), "positions are at the ends"
    assert worker.stop() == 0
    again = world.start_worker()  # what all workers read keeps none from starting
    world.until_shared([again])
    check_untroubled(again)
