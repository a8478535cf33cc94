"""What a lane relies on in Kafka, held by the fake and by the real adapter alike."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.transaction import EndTxnRequest

from streams.errors import (
    ClockWrong,
    ClusterUnavailable,
    Fenced,
    OutcomeUnknown,
    PositionLost,
    RecordRefused,
    Refused,
    TooLarge,
    TopicMismatch,
)
from streams.kafka.clients import KafkaOptions, Producer
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.model.envelope import record_size
from streams.ports import TP, Damaged, HeldUp, Outgoing, OwnRecord, Reader, Record, TopicSpec, Transactions
from streams.testing.batches import CODECS, batch, record
from streams.testing.cluster import FakeCluster
from tests.hostile import BOMBS, DAMAGED, UNFRAMED, UNOPENED, three
from tests.kafka_admin import administering, delete_topic, recreate_topic, truncate
from tests.raw_kafka import in_the_log, overwrite, spoiled
from tests.waiting import eventually_async

#: Longer than any test may take.
FOREVER = 600.0
#: The producers of the real adapter: tests of producers run with each, and the others with the first.
OURS: Producer = "newest"
ALL = get_args(Producer)
#: Why the others run in `make verify` alone.
OTHERS = {"v1": "the first version: integration/test_transaction_levels.py speaks it to an older cluster"}


def marks_of(producer: Producer) -> list[pytest.MarkDecorator]:
    return [pytest.mark.verify(OTHERS[producer])] if producer in OTHERS else []


PRODUCERS = [pytest.param(name, marks=marks_of(name)) for name in ALL]
_names = count(time.time_ns())


def unique(prefix: str) -> str:
    return f"{prefix}-{next(_names)}"


class FakeWorld:
    def __init__(self) -> None:
        self.cluster = FakeCluster()

    async def hasten(self, transaction_timeout: float) -> None:
        self.cluster.transaction_timeout = transaction_timeout

    async def topic(self, partitions: int = 1, *, limit: int = 0) -> str:
        name = unique("topic")
        self.cluster.create_topic(name, partitions)
        if limit:
            self.cluster.limits[name] = limit
        return name

    async def be_ahead(self, topic: str, seconds: float, patch: pytest.MonkeyPatch) -> None:
        self.cluster.clock_ahead = seconds

    async def produce(self, tp: TP, values: Iterable[bytes]) -> None:
        for value in values:
            self.cluster.produce(tp, None, value)

    async def produce_batch(self, tp: TP, raw: bytes) -> None:
        self.cluster.produce_batch(tp, raw)

    async def spoil(self, tp: TP, offset: int) -> None:
        self.cluster.spoil(tp, offset)

    async def truncate(self, tp: TP, before: int) -> None:
        self.cluster.truncate(tp, before)

    async def recreate(self, topic: str) -> None:
        self.cluster.recreate_topic(topic)

    async def delete(self, topic: str) -> None:
        self.cluster.delete_topic(topic)

    async def close(self) -> None:
        pass


class KafkaWorld:
    def __init__(self, bootstrap: str, data: Path = Path(), producer: Producer = OURS) -> None:
        self.bootstrap = bootstrap
        self.data = data
        self.options = KafkaOptions(metadata_timeout=2.0, producer=producer)
        self.cluster = KafkaCluster(bootstrap, self.options)

    async def hasten(self, transaction_timeout: float) -> None:
        await self.cluster.close()
        self.cluster = KafkaCluster(
            self.bootstrap, replace(self.options, transaction_timeout=transaction_timeout)
        )

    async def topic(self, partitions: int = 1, *, limit: int = 0) -> str:
        name = unique("topic")
        config = {"cleanup.policy": "delete", **({"max.message.bytes": str(limit)} if limit else {})}
        async with KafkaTopics(self.bootstrap) as topics:
            await topics.create([TopicSpec(name, partitions, 1, config)])
        return name

    async def be_ahead(self, topic: str, seconds: float, patch: pytest.MonkeyPatch) -> None:
        """The producers' clock is; an older broker bears that until its topic does not."""
        ahead = SimpleNamespace(time=lambda: time.time() + seconds)
        patch.setattr("streams.kafka.transactions.producer.time", ahead)
        async with administering(self.bootstrap) as admin:
            limit = {"message.timestamp.after.max.ms": "3600000"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, limit)])

    async def produce(self, tp: TP, values: Iterable[bytes]) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for value in values:
                await producer.send_and_wait(tp.topic, value, partition=tp.partition)

    async def produce_batch(self, tp: TP, raw: bytes) -> None:
        await in_the_log(self.bootstrap, self.data, tp, raw)

    async def spoil(self, tp: TP, offset: int) -> None:
        overwrite(self.data, tp, offset, spoiled)

    async def truncate(self, tp: TP, before: int) -> None:
        await truncate(self.bootstrap, tp, before)

    async def recreate(self, topic: str) -> None:
        await recreate_topic(self.bootstrap, topic)

    async def delete(self, topic: str) -> None:
        await delete_topic(self.bootstrap, topic)

    async def close(self) -> None:
        await self.cluster.close()


World = FakeWorld | KafkaWorld


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        used = ALL if "owner" in metafunc.fixturenames else [OURS]
        params = ["fake"]
        for name in used:
            said = "kafka" if name == OURS else f"kafka-{name}"
            params.append(pytest.param(name, marks=[pytest.mark.stack, *marks_of(name)], id=said))
        metafunc.parametrize("world", params, indirect=True)


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "fake":
        made: World = FakeWorld()
    else:
        stack = request.getfixturevalue("kafka")
        made = KafkaWorld(stack.bootstrap, stack.var.kafka, request.param)
    yield made
    await made.close()


@pytest.fixture
async def owner(world: World) -> AsyncIterator[Callable[[str], Any]]:
    """Starts owners of a transactional id and lets go of them at the end."""
    started: list[Transactions] = []

    async def start(transactional_id: str) -> Transactions:
        producer = world.cluster.transactions(transactional_id)
        started.append(producer)
        await producer.start()
        return producer

    yield start
    for producer in started:
        await producer.discard()


@pytest.fixture
async def tp(world: World) -> TP:
    return TP(await world.topic(), 0)


@pytest.fixture
async def reader(world: World) -> AsyncIterator[Reader]:
    made = await world.cluster.reader()
    yield made
    await made.close()


async def tps(world: World, count: int) -> list[TP]:
    return [TP(await world.topic(), 0) for _ in range(count)]


def out(*values: bytes) -> list[Outgoing]:
    return [Outgoing(b"key", value, []) for value in values]


async def opened(owner: Any, name: str = "", batches: Mapping[TP, Sequence[Outgoing]] | None = None) -> Any:
    """A producer with a transaction open, and these records in it."""
    producer = await owner(name or unique("id"))
    await producer.begin()
    if batches:
        await producer.send(batches)
    return producer


async def write(producer: Transactions, batches: Mapping[TP, Sequence[Outgoing]]) -> dict[TP, int]:
    await producer.begin()
    ends = await producer.send(batches)
    await producer.commit()
    return ends


async def read(reader: Reader, position: Mapping[TP, int], until: Mapping[TP, int]) -> list[Record]:
    """Read until every position has been reached."""
    await reader.assign(position)
    records: list[Record] = []
    while any(reader.position(tp) < offset for tp, offset in until.items()):
        for each in await reader.fetch(max_records=100, timeout=0.5):
            assert each.next_offset == reader.position(each.tp)
            records += each.records
    return records


async def read_all(world: World, reader: Reader, *tps: TP) -> list[bytes | None]:
    ends = await world.cluster.end_offsets(tps)
    return [record.value for record in await read(reader, dict.fromkeys(tps, 0), ends)]


# Fencing


@pytest.mark.promise("one-owner")
@pytest.mark.parametrize("step", ["send", "send_offsets", "commit"])
async def test_start_fences_the_previous_owner(world: World, owner: Any, reader: Reader, step: str) -> None:
    tp, source = await tps(world, 2)
    group, name = unique("group"), unique("id")
    zombie = await opened(owner, name, {tp: out(b"zombie")})
    await zombie.send_offsets({source: 7}, group)

    successor = await owner(name)

    steps = {
        "send": lambda: zombie.send({tp: out(b"zombie again")}),
        "send_offsets": lambda: zombie.send_offsets({source: 8}, group),
        "commit": zombie.commit,
    }
    with pytest.raises(Fenced):
        await steps[step]()
    assert await world.cluster.committed(group, [source]) == {}
    await write(successor, {tp: out(b"successor")})
    assert await read_all(world, reader, tp) == [b"successor"]


async def test_a_fenced_owner_stays_fenced_at_every_step(world: World, owner: Any) -> None:
    tp, name = TP(await world.topic(), 0), unique("id")
    zombie = await opened(owner, name, {tp: out(b"1")})
    await owner(name)
    with pytest.raises(Fenced):
        await zombie.send({tp: out(b"2")})
    for step in (
        zombie.begin,
        lambda: zombie.send({tp: out(b"3")}),
        lambda: zombie.send_offsets({tp: 1}, "group"),
        zombie.commit,
    ):
        with pytest.raises(Fenced):
            await step()


@pytest.mark.parametrize("step", ["send", "send_offsets"])
async def test_an_idle_owner_is_fenced_at_its_first_request(
    world: World, owner: Any, reader: Reader, step: str
) -> None:
    tp, source = await tps(world, 2)
    group, name = unique("group"), unique("id")
    zombie = await owner(name)
    await write(zombie, {tp: out(b"before")})
    await owner(name)
    await zombie.begin()
    with pytest.raises(Fenced):
        await (
            zombie.send({tp: out(b"after")}) if step == "send" else zombie.send_offsets({source: 3}, group)
        )
    assert await world.cluster.committed(group, [source]) == {}
    assert await read_all(world, reader, tp) == [b"before"]


async def test_start_ends_the_transaction_of_a_dead_owner(world: World, owner: Any, reader: Reader) -> None:
    tp, name = TP(await world.topic(), 0), unique("id")
    dead = await opened(owner, name, {tp: out(b"never committed")})
    await world.produce(tp, [b"behind it"])
    await reader.assign({tp: 0})
    assert await reader.fetch(max_records=10, timeout=0.3) == []
    await dead.discard()
    assert await reader.fetch(max_records=10, timeout=0.3) == []

    await owner(name)

    assert await read_all(world, reader, tp) == [b"behind it"]


async def test_two_starts_at_once_leave_one_owner_that_works(world: World, reader: Reader) -> None:
    tp, name = TP(await world.topic(), 0), unique("id")
    both = [world.cluster.transactions(name) for _ in range(2)]
    await asyncio.gather(*(producer.start() for producer in both))
    outcomes = await asyncio.gather(*(write(p, {tp: out(b"x")}) for p in both), return_exceptions=True)
    assert sum(isinstance(outcome, dict) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 1
    assert await read_all(world, reader, tp) == [b"x"]
    for producer in both:
        await producer.discard()


# Transactions and offsets


@pytest.mark.promise("all-or-nothing")
async def test_open_records_are_hidden_until_the_commit(owner: Any, reader: Reader, tp: TP) -> None:
    producer = await opened(owner, batches={tp: out(b"1", b"2")})
    await reader.assign({tp: 0})
    assert await reader.fetch(max_records=10, timeout=0.3) == []
    assert reader.position(tp) == 0

    await producer.commit()

    assert [r.value for r in await read(reader, {tp: 0}, {tp: 2})] == [b"1", b"2"]


@pytest.mark.promise("smaller-transactions")
@pytest.mark.parametrize("step", ["send", "commit"])
async def test_a_transaction_past_its_timeout_is_fenced(world: World, owner: Any, step: str, tp: TP) -> None:
    await world.hasten(0.5)
    producer = await opened(owner, batches={tp: out(b"aborted")})
    reader = await world.cluster.reader()
    try:
        await reader.assign({tp: 0})
        while reader.position(tp) < 2:  # over the record and its marker
            batches = await reader.fetch(max_records=10, timeout=0.2)
            assert [record for batch in batches for record in batch.records] == []
    finally:
        await reader.close()
    with pytest.raises(Fenced):
        await (producer.commit() if step == "commit" else producer.send({tp: out(b"late")}))


async def test_send_returns_the_positions_that_readers_see(world: World, owner: Any, reader: Reader) -> None:
    topic = await world.topic(3)
    first, second, untouched = (TP(topic, i) for i in range(3))
    producer = await owner(unique("id"))
    for _ in range(3):
        ends = await write(producer, {first: out(b"a", b"b"), second: out(b"c"), untouched: []})
        assert ends.keys() == {first, second}
        records = await read(reader, {first: 0, second: 0}, ends)
        last = {tp: max(r.offset for r in records if r.partition == tp.partition) for tp in ends}
        assert ends == {tp: offset + 1 for tp, offset in last.items()}


async def test_what_a_trusted_producer_has_written_comes_as_own(
    world: World, owner: Any, reader: Reader, tp: TP
) -> None:
    first, other = await owner(unique("id")), await owner(unique("id"))
    await write(first, {tp: out(b"own", bytes(100))})
    await write(other, {tp: out(b"another lane's")})
    await world.produce(tp, [b"a client's"])
    reader.trust({first.producer_id})
    ends = await world.cluster.end_offsets([tp])
    found = await read(reader, {tp: 0}, ends)
    assert [isinstance(each, OwnRecord) for each in found] == [True, True, False, False]
    reader.trust({first.producer_id}, {tp: ends[tp]})
    found = await read(reader, {tp: 0}, ends)
    assert [isinstance(each, OwnRecord) for each in found] == [True, True, True, False]
    reader.trust(set(), {tp: found[2].offset})
    found = await read(reader, {tp: 0}, ends)
    assert [isinstance(each, OwnRecord) for each in found] == [True, True, False, False]
    again = world.cluster.transactions(first._id)
    await again.start()
    assert again.producer_id == first.producer_id, "the next owner has the same id"
    await again.discard()


async def test_the_position_moves_over_a_marker(world: World, owner: Any, reader: Reader, tp: TP) -> None:
    ends = await write(await owner(unique("id")), {tp: out(b"1")})
    end = (await world.cluster.end_offsets([tp]))[tp]
    assert end == ends[tp] + 1
    await reader.assign(ends)
    batch, *rest = await reader.fetch(max_records=10, timeout=FOREVER)
    assert (batch.tp, list(batch.records), batch.next_offset, rest) == (tp, [], end, [])
    assert reader.position(tp) == end


async def test_a_batch_ends_behind_its_last_record_or_the_marker(owner: Any, reader: Reader, tp: TP) -> None:
    await write(await owner(unique("id")), {tp: out(b"1", b"2")})
    await reader.assign({tp: 0})
    (batch,) = await reader.fetch(max_records=1, timeout=FOREVER)
    assert ([r.value for r in batch.records], batch.next_offset) == ([b"1"], 1)
    (batch,) = await reader.fetch(max_records=10, timeout=FOREVER)
    assert ([r.value for r in batch.records], batch.next_offset) == ([b"2"], 3)


async def test_aborted_records_are_skipped_but_counted(world: World, owner: Any, reader: Reader) -> None:
    tp, name = TP(await world.topic(), 0), unique("id")
    await opened(owner, name, {tp: out(b"aborted", b"aborted")})
    successor = await owner(name)
    ends = await write(successor, {tp: out(b"kept")})
    (record,) = await read(reader, {tp: 0}, ends)
    assert (record.value, record.offset) == (b"kept", 3)


@pytest.mark.promise("all-or-nothing")
async def test_committed_positions_move_only_with_the_commit(world: World, owner: Any) -> None:
    topic, target, group = await world.topic(2), TP(await world.topic(), 0), unique("group")
    moved, other = TP(topic, 0), TP(topic, 1)
    name = unique("id")
    producer = await opened(owner, name)
    await producer.send({target: out(b"1")})
    await producer.send_offsets({moved: 5}, group)
    assert await world.cluster.committed(group, [moved, other]) == {}
    await producer.commit()
    # The commit returns when it is decided, and the position may show later: the next start waits for that.
    await owner(name)
    assert await world.cluster.committed(group, [moved, other]) == {moved: 5}
    assert await world.cluster.committed(group, []) == {}


async def test_positions_of_many_partitions_are_committed_without_records(world: World, owner: Any) -> None:
    topic, group = await world.topic(16), unique("group")
    positions = {TP(topic, i): i * 10 for i in range(16)}
    name = unique("id")
    producer = await opened(owner, name)
    await producer.send_offsets(positions, group)
    await producer.commit()
    await owner(name)
    assert await world.cluster.committed(group, positions) == positions


async def test_records_and_positions_may_be_sent_at_once(world: World, owner: Any, reader: Reader) -> None:
    tp, source = await tps(world, 2)
    group, name = unique("group"), unique("id")
    producer = await owner(name)
    for i in range(5):
        await producer.begin()
        await asyncio.gather(
            producer.send({tp: out(b"%d" % i)}), producer.send_offsets({source: i + 1}, group)
        )
        await producer.commit()
    await owner(name)
    assert await world.cluster.committed(group, [source]) == {source: 5}
    assert await read_all(world, reader, tp) == [b"%d" % i for i in range(5)]


async def test_an_empty_transaction_commits_and_writes_nothing(world: World, owner: Any, tp: TP) -> None:
    producer = await owner(unique("id"))
    assert await write(producer, {tp: []}) == {}
    assert await write(producer, {}) == {}
    assert await world.cluster.end_offsets([tp]) == {tp: 0}


async def test_end_offsets_count_records_of_an_open_transaction(world: World, owner: Any, tp: TP) -> None:
    await opened(owner, batches={tp: out(b"1", b"2", b"3")})
    assert await world.cluster.end_offsets([tp]) == {tp: 3}
    assert await world.cluster.begin_offsets([tp]) == {tp: 0}
    assert await world.cluster.end_offsets([]) == {}


async def test_the_first_offset_since_a_time_is_found(world: World, reader: Reader, tp: TP) -> None:
    for value in (b"1", b"2"):
        await world.produce(tp, [value])
        await asyncio.sleep(0.002)  # each has a time of its own
    _, second = await read(reader, {tp: 0}, {tp: 2})
    assert await world.cluster.offsets_since([tp], second.timestamp) == {tp: 1}
    assert await world.cluster.offsets_since([tp], 0) == {tp: 0}
    assert await world.cluster.offsets_since([tp], second.timestamp + 1) == {}
    assert await world.cluster.offsets_since([], 0) == {}


async def test_a_transaction_of_many_batches_keeps_order(world: World, owner: Any, reader: Reader) -> None:
    topic = await world.topic(2)
    values = [b"%06d" % i + b"x" * 100_000 for i in range(30)]
    ends = await write(await owner(unique("id")), {TP(topic, p): out(*values) for p in range(2)})
    assert ends == {TP(topic, p): 30 for p in range(2)}
    records = await read(reader, dict.fromkeys(ends, 0), ends)
    for partition in range(2):
        assert [r.value for r in records if r.partition == partition] == values


async def test_keys_tombstones_headers_and_times_arrive_as_sent(owner: Any, reader: Reader, tp: TP) -> None:
    sent = [
        Outgoing(b"k", b"v", [("ce_id", b"1"), ("ce_id", b"2"), ("empty", b"")]),
        Outgoing(b"k", None, (("reason", b"deleted"),)),
        Outgoing(None, b"", []),
    ]
    before = int(time.time() * 1000)
    ends = await write(await owner(unique("id")), {tp: sent})
    records = await read(reader, {tp: 0}, ends)
    assert [(r.topic, r.partition, r.offset) for r in records] == [(*tp, i) for i in range(3)]
    assert [(r.key, r.value, list(r.headers)) for r in records] == [(k, v, list(h)) for k, v, h in sent]
    assert all(before <= r.timestamp <= time.time() * 1000 for r in records)


async def test_an_oversized_record_is_too_large_and_nothing_is_sent(world: World, owner: Any, tp: TP) -> None:
    producer = await opened(owner)
    with pytest.raises(TooLarge, match=tp.topic):
        await producer.send({tp: [*out(b"small"), Outgoing(b"key", b"x" * (1 << 20), [])]})
    assert await world.cluster.end_offsets([tp]) == {tp: 0}


# Letting go


async def test_the_next_start_aborts_what_was_discarded(world: World, owner: Any, reader: Reader) -> None:
    tp, source = await tps(world, 2)
    group, name = unique("group"), unique("id")
    first = await opened(owner, name, {tp: out(b"discarded")})
    await first.send_offsets({source: 9}, group)
    await first.discard()
    await first.discard()
    assert await world.cluster.end_offsets([tp]) == {tp: 1}
    with pytest.raises(OutcomeUnknown):
        await first.commit()

    await write(await owner(name), {tp: out(b"kept")})

    assert await world.cluster.committed(group, [source]) == {}
    assert await read_all(world, reader, tp) == [b"kept"]


async def test_steps_out_of_order_are_refused(world: World, owner: Any, tp: TP) -> None:
    for step in (
        lambda p: p.send({tp: out(b"1")}),
        lambda p: p.send_offsets({tp: 1}, "group"),
        lambda p: p.commit(),
    ):
        with pytest.raises(OutcomeUnknown):
            await step(await owner(unique("id")))
    twice = await owner(unique("id"))
    await twice.begin()
    with pytest.raises(OutcomeUnknown):
        await twice.begin()
    assert await world.cluster.end_offsets([tp]) == {tp: 0}


# Reading


async def test_fetch_comes_back_when_a_record_arrives(world: World, reader: Reader) -> None:
    topic = await world.topic(2)
    await reader.assign({TP(topic, 0): 0, TP(topic, 1): 0})
    waiting = asyncio.ensure_future(reader.fetch(max_records=10, timeout=FOREVER))
    await world.produce(TP(topic, 1), [b"1"])
    (batch,) = await waiting
    assert (batch.tp, [r.value for r in batch.records], batch.next_offset) == (TP(topic, 1), [b"1"], 1)


async def test_fetch_comes_back_empty_after_its_timeout(world: World, reader: Reader) -> None:
    await reader.assign({TP(await world.topic(), 0): 0})
    waiting = asyncio.ensure_future(reader.fetch(max_records=10, timeout=0.2))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await waiting == []


async def test_fetch_is_bounded_and_misses_nothing(world: World, reader: Reader) -> None:
    topic = await world.topic(3)
    tps = [TP(topic, i) for i in range(3)]
    for tp in tps:
        await world.produce(tp, [b"%d" % i for i in range(10)])
    await reader.assign(dict.fromkeys(tps, 2))
    seen: dict[TP, list[int]] = {tp: [] for tp in tps}
    while any(reader.position(tp) < 10 for tp in tps):
        batches = await reader.fetch(max_records=4, timeout=0.5)
        assert sum(len(batch.records) for batch in batches) <= 4
        for each in batches:
            seen[each.tp] += [record.offset for record in each.records]
    assert seen == {tp: list(range(2, 10)) for tp in tps}


async def test_assign_replaces_what_was_assigned(world: World, reader: Reader) -> None:
    topic = await world.topic(2)
    old, new = TP(topic, 0), TP(topic, 1)
    await world.produce(old, [b"old"])
    await world.produce(new, [b"1", b"2"])
    assert len(await read(reader, {old: 0}, {old: 1})) == 1
    assert [r.value for r in await read(reader, {new: 1}, {new: 2})] == [b"2"]
    assert [r.value for r in await read(reader, {new: 0}, {new: 2})] == [b"1", b"2"]
    await reader.assign({})
    assert await reader.fetch(max_records=10, timeout=0.05) == []


@pytest.mark.parametrize("position", [2, 40])
async def test_a_position_outside_the_log_is_lost(world: World, reader: Reader, position: int) -> None:
    tp = TP(await world.topic(), 0)
    await world.produce(tp, [b"%d" % i for i in range(8)])
    await world.truncate(tp, 5)
    assert await world.cluster.begin_offsets([tp]) == {tp: 5}
    await reader.assign({tp: position})
    with pytest.raises(PositionLost, match=rf"{tp.topic}\[0\].* {position}.*5 to 8"):
        await reader.fetch(max_records=10, timeout=FOREVER)


async def test_an_unknown_topic_is_named_within_a_bound(world: World, reader: Reader) -> None:
    missing = TP(unique("missing"), 0)
    with pytest.raises(TopicMismatch, match=missing.topic):
        await reader.assign({missing: 0})
    with pytest.raises(TopicMismatch, match=missing.topic):
        await world.cluster.end_offsets([missing])


async def test_a_producer_names_an_unknown_partition_within_a_bound(world: World, owner: Any) -> None:
    too_few = TP(await world.topic(), 5)
    producer = await opened(owner)
    with pytest.raises(TopicMismatch, match=rf"{too_few.topic}\[5\]"):
        await producer.send({too_few: out(b"1")})


# What only the real adapter can get wrong


@pytest.mark.slow("waits for nobody")
async def test_nobody_at_the_address_is_said_within_a_bound() -> None:
    nowhere = KafkaCluster("127.0.0.1:1", KafkaOptions(metadata_timeout=0.5, start_timeout=0.5))
    with pytest.raises(ClusterUnavailable):
        await nowhere.committed("group", [TP("topic", 0)])
    with pytest.raises(ClusterUnavailable):
        await nowhere.end_offsets([TP("topic", 0)])
    with pytest.raises(ClusterUnavailable):
        await nowhere.reader()
    producer = nowhere.transactions("id")
    with pytest.raises(OutcomeUnknown):
        await producer.start()
    await producer.discard()
    await nowhere.close()


@pytest.mark.promise("unknown-outcome")
@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("kind", PRODUCERS)
async def test_the_next_start_finds_out_a_lost_answer(kafka: Any, kind: Producer, lost: str) -> None:
    world = KafkaWorld(kafka.bootstrap)
    world.cluster = KafkaCluster(kafka.bootstrap, KafkaOptions(step_timeout=0.5, producer=kind))
    source, group, name = TP(await world.topic(), 0), unique("group"), unique("id")
    first = world.cluster.transactions(name)
    await first.start()
    await first.begin()
    await first.send_offsets({source: 4}, group)
    silenced(first, lost)
    with pytest.raises(OutcomeUnknown, match="no answer"):
        await first.commit()
    await first.discard()

    second = world.cluster.transactions(name)
    await second.start()
    assert await world.cluster.committed(group, [source]) == ({source: 4} if lost == "answer" else {})
    await second.discard()
    await world.close()


def silenced(producer: Any, lost: str) -> None:
    """Let the end of the transaction vanish on its way, or its answer."""
    real = producer._link.ask

    async def ask(node: int, request: Any, *more: Any, **options: Any) -> Any:
        if request.API_KEY != EndTxnRequest.API_KEY:
            return await real(node, request, *more, **options)
        if lost == "answer":
            await real(node, request, *more, **options)
        return await asyncio.get_running_loop().create_future()

    producer._link.ask = ask


@pytest.mark.promise("unknown-outcome")
@pytest.mark.parametrize("kind", PRODUCERS)
async def test_a_discarded_producer_sends_nothing_more(kafka: Any, kind: Producer) -> None:
    world = KafkaWorld(kafka.bootstrap, producer=kind)
    tp = TP(await world.topic(), 0)
    producer: Any = world.cluster.transactions(unique("id"))
    await producer.start()
    await producer.begin()
    sending = asyncio.ensure_future(producer.send({tp: out(b"1")}))
    await asyncio.sleep(0)  # it is on its way, and the broker has not been asked yet
    await producer.discard()
    with pytest.raises(OutcomeUnknown):
        await sending
    await world.close()
    assert await world.cluster.end_offsets([tp]) == {tp: 0}
    await world.close()


MANY = [("n" * (i % 70), b"v" * i if i % 3 else None) for i in range(200)]


@pytest.mark.promise("size-limits", "the sizes that the other tests rely on")
@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, b"x", []),
        (b"", b"x" * 5_000, [("", b"")]),
        (b"k" * 70, None, [("n" * 64, b"v" * 8_192), ("é" * 40, b"v" * 63)]),
        (b"k" * 9_000, b"x" * 20_000, MANY),
    ],
    ids=["little", "value", "no value", "many headers"],
)
async def test_a_topic_refuses_a_byte_more_than_its_limit(
    world: World, owner: Any, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]
) -> None:
    record = Outgoing(key, value, headers)
    size = record_size(*record)
    enough, too_small = [TP(await world.topic(limit=limit), 0) for limit in (size, size - 1)]
    await write(await owner(unique("id")), {enough: [record]})
    producer = await opened(owner)
    with pytest.raises(RecordRefused, match="MessageSizeTooLarge") as told:
        await producer.send({too_small: [record]})
    assert (told.value.limit, told.value.topic) == (size - 1, too_small.topic)
    assert f"{size} bytes for {too_small.topic}[0]" in str(told.value)
    with pytest.raises(RecordRefused):
        await producer.commit()


@pytest.mark.promise("refusals")
async def test_a_clock_that_is_ahead_is_named(
    world: World, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = TP(await world.topic(), 0)
    await write(await owner(unique("id")), {tp: out(b"1")})
    producer = await owner(unique("id"))
    await world.be_ahead(tp.topic, 7_260.0, monkeypatch)
    await producer.begin()
    with pytest.raises(ClockWrong, match="clock") as told:
        await asyncio.gather(producer.send({tp: out(b"2")}), producer.send_offsets({tp: 1}, unique("group")))
    assert "clock is 7,26" in str(told.value)
    assert told.value.ahead == pytest.approx(7_260.0, abs=30.0)
    with pytest.raises(Refused):
        await producer.commit()
    await world.be_ahead(tp.topic, 0.0, monkeypatch)
    await write(await owner(unique("id")), {tp: out(b"3")})


async def test_topics_are_created_once_and_described(kafka: Any) -> None:
    spec = TopicSpec(unique("topic"), 3, 1, {"cleanup.policy": "compact", "max.message.bytes": "2000000"})
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create([spec])
        await topics.create([TopicSpec(spec.name, 9, 1)])
        described = await topics.describe([spec.name, "no.such.topic"])
        assert described.keys() == {spec.name}
        topic = described[spec.name]
        assert (topic.partitions, topic.replication, topic.ready) == (3, 1, True)
        assert topic.config["cleanup.policy"] == "compact"
        assert topic.config["max.message.bytes"] == "2000000"
        with pytest.raises(TopicMismatch, match="no spaces"):
            await topics.create([TopicSpec("no spaces", 1, 1)])
        assert await topics.describe(["no.such.topic"]) == {}


async def test_a_reader_can_be_closed_as_soon_as_connected(world: World) -> None:
    reader = await world.cluster.reader()
    await reader.close()


@pytest.fixture
async def patient(kafka: Any) -> AsyncIterator[tuple[World, Reader]]:
    """A reader whose fetches are held back for far longer than any of its tests may take."""
    world = KafkaWorld(kafka.bootstrap)
    await world.cluster.close()
    world.cluster = KafkaCluster(
        kafka.bootstrap, KafkaOptions(fetch_wait=FOREVER, request_timeout=2 * FOREVER)
    )
    reader = await world.cluster.reader()
    yield world, reader
    await reader.close()
    await world.close()


async def test_a_new_assignment_does_not_wait_behind_the_old(patient: tuple[World, Reader]) -> None:
    world, reader = patient
    idle, busy = await tps(world, 2)
    await world.produce(busy, [b"1"])
    await reader.assign({idle: 0})
    assert await reader.fetch(max_records=1, timeout=0.3) == []
    assert len(await read(reader, {busy: 0}, {busy: 1})) == 1


async def test_a_busy_partition_is_not_held_up_by_idle_ones(patient: tuple[World, Reader]) -> None:
    world, reader = patient
    idle, busy, elsewhere = await tps(world, 3)
    await world.produce(busy, [b"1", b"2"])
    await reader.assign({idle: 0, busy: 0})
    await reader.fetch(max_records=1, timeout=FOREVER)
    # Meanwhile the lane works, for longer than aiokafka lets a record lie before it fetches the others alone.
    await world.produce(elsewhere, [b"x"] * 200)
    await world.produce(busy, [b"3"])
    while reader.position(busy) < 3:
        await reader.fetch(max_records=1, timeout=FOREVER)


@pytest.mark.promise("recreated-topics")
async def test_groups_have_no_position_in_a_topic_made_anew(world: World, owner: Any) -> None:
    tp, other, group = TP(await world.topic(), 0), await world.topic(), unique("group")
    await world.produce(tp, [b"1", b"2"])
    producer = await opened(owner)
    await producer.send_offsets({tp: 2}, group)
    await producer.commit()
    before = await world.cluster.identity([tp.topic, other, "never-made"])
    assert before.topics.keys() == {tp.topic, other}
    assert before.cluster
    assert await world.cluster.identity([tp.topic, other]) == before
    await world.recreate(tp.topic)
    after = await world.cluster.identity([tp.topic, other])
    assert after.cluster == before.cluster
    assert after.topics[other] == before.topics[other]
    assert after.topics[tp.topic] != before.topics[tp.topic]
    assert await world.cluster.committed(group, [tp]) == {}
    assert await world.cluster.end_offsets([tp]) == {tp: 0}


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
async def test_positions_under_way_go_with_their_topic(world: World, owner: Any, again: bool) -> None:
    (tp, other), group = await tps(world, 2), unique("group")
    producer = await opened(owner)
    await producer.send_offsets({tp: 2, other: 3}, group)
    await (world.recreate if again else world.delete)(tp.topic)
    await producer.commit()

    async def is_dropped() -> bool:
        return await world.cluster.committed(group, [tp, other]) == {other: 3}

    await eventually_async(is_dropped, "the group has no position in it")


async def test_no_position_is_added_in_a_topic_that_is_gone(world: World, owner: Any) -> None:
    await world.hasten(2.0)
    (tp, other), group = await tps(world, 2), unique("group")
    await world.delete(tp.topic)
    producer = await opened(owner)
    with pytest.raises((Fenced, OutcomeUnknown)):  # asked again until the transaction times out
        await producer.send_offsets({tp: 2, other: 3}, group)
    assert await world.cluster.committed(group, [tp, other]) == {}


async def unknown(reader: Reader, topic: str) -> list[Record]:
    """Read until a broker says that it does not have a topic; returns what came until then."""
    records: list[Record] = []
    async with asyncio.timeout(60):
        while topic not in reader.unknown_topics():
            records += [
                each for batch in await reader.fetch(max_records=9, timeout=0.1) for each in batch.records
            ]
    return records


@pytest.mark.promise("recreated-topics")
async def test_nothing_is_read_by_id_of_a_topic_made_anew(world: World, reader: Reader) -> None:
    tp, other = await tps(world, 2)
    await world.produce(tp, [b"1", b"2"])
    ids = (await world.cluster.identity([tp.topic, other.topic])).topics
    await reader.assign({tp: 0, other: 0}, ids)
    while reader.position(tp) < 2:
        await reader.fetch(max_records=9, timeout=0.5)
    assert not reader.unknown_topics()
    await world.recreate(tp.topic)
    await world.produce(tp, [b"new"] * 5)
    assert await unknown(reader, tp.topic) == []
    for number in range(1, 6):  # others are read on
        await world.produce(other, [b"3"])
        while reader.position(other) < number:
            assert {each.tp for each in await reader.fetch(max_records=9, timeout=0.5)} <= {other}
    assert reader.position(tp) == 2
    ids = (await world.cluster.identity([tp.topic])).topics
    assert [each.value for each in await read(reader, {tp: 0}, {tp: 5})] == [b"new"] * 5
    await reader.assign({tp: 3}, ids)
    while reader.position(tp) < 5:
        await reader.fetch(max_records=9, timeout=0.5)
    assert not reader.unknown_topics()


@pytest.mark.parametrize("by_id", [True, False], ids=["by id", "by name"])
async def test_a_reader_says_that_a_topic_is_gone(world: World, reader: Reader, by_id: bool) -> None:
    tp, other = await tps(world, 2)
    identity = await world.cluster.identity([tp.topic, other.topic])
    assert identity.partitions == {tp.topic: 1, other.topic: 1}
    await reader.assign({tp: 0, other: 0}, identity.topics if by_id else {})
    await world.produce(other, [b"1"])
    while reader.position(other) < 1:
        await reader.fetch(max_records=9, timeout=0.5)
    await world.delete(tp.topic)
    assert await unknown(reader, tp.topic) == []
    await world.produce(other, [b"2"])
    while reader.position(other) < 2:  # others are read on
        await reader.fetch(max_records=9, timeout=0.5)
    assert (await world.cluster.identity([tp.topic, other.topic])).topics.keys() == {other.topic}


# What cannot be read

HOSTILE: dict[str, tuple[Callable[[], bytes], list[tuple[int, str | bytes]]]] = {
    **{
        f"{what}, {codec}": (
            partial(batch, three(DAMAGED[what]), codec=codec),
            [(1, b"first"), (2, "record"), (3, b"third")],
        )
        for what in DAMAGED
        for codec in ("none", "zstd")
    },
    **{
        what: (partial(batch, three(UNFRAMED[what])), [(1, b"first"), (3, "records of a batch")])
        for what in UNFRAMED
    },
    **{
        what: (
            partial(batch, [b""] * 5, body=UNOPENED[what][1], attributes=UNOPENED[what][0]),
            [(5, "record batch")],
        )
        for what in UNOPENED
    },
    **{f"a bomb, {codec}": (BOMBS[codec], [(1, "record batch")]) for codec in BOMBS},
    "a wrong checksum": (
        lambda: spoiled(batch([record(0, b"k", b"1"), record(1, b"k", b"2")])),
        [(2, "record batch")],
    ),
    **{
        f"sound, {codec}": (
            partial(batch, [record(i, b"k", b"%d" % i) for i in range(3)], codec=codec),
            [(1, b"0"), (2, b"1"), (3, b"2")],
        )
        for codec in CODECS
    },
}


def forms(records: Iterable[Record]) -> list[tuple[int, Any]]:
    return [(each.offset, each.form if isinstance(each, Damaged) else each.value) for each in records]


@pytest.mark.promise("unreadable-records")
@pytest.mark.parametrize("what", HOSTILE)
async def test_what_cannot_be_read_comes_damaged(world: World, reader: Reader, what: str, tp: TP) -> None:
    make, expected = HOSTILE[what]
    raw = make()
    await world.produce(tp, [b"before"])
    await world.produce_batch(tp, raw)
    await world.produce(tp, [b"after"])
    ends = await world.cluster.end_offsets([tp])
    found = await read(reader, {tp: 0}, ends)
    assert forms(found) == [(0, b"before"), *expected, (ends[tp] - 1, b"after")]
    for each in found:
        if isinstance(each, Damaged) and each.form == "record batch":
            assert each.value[16:] == raw[16:]
    for start in range(1, ends[tp]):  # from any place, also inside the batch
        assert forms(await read(reader, {tp: start}, ends)) == [
            pair for pair in forms(found) if pair[0] >= start
        ]


@pytest.mark.promise("unreadable-records")
async def test_damage_is_seen_in_committed_records_alone(world: World, owner: Any, reader: Reader) -> None:
    tp, name = TP(await world.topic(), 0), unique("owner")
    producer = await opened(owner, name, {tp: out(b"given up")})
    producer = await owner(name)
    await write(producer, {tp: out(b"kept")})
    await write(producer, {tp: out(b"sound")})
    ends = await world.cluster.end_offsets([tp])
    given_up, kept = 0, 2
    for offset in (given_up, kept):
        await world.spoil(tp, offset)
    found = await read(reader, {tp: 0}, ends)
    assert forms(found) == [(kept, "record batch"), (4, b"sound")]
    assert await read_all(world, reader, tp) == [found[0].value, b"sound"]


async def test_what_stands_behind_an_open_transaction_is_told(
    world: World, owner: Any, reader: Reader, tp: TP
) -> None:
    await world.produce(tp, [b"before"])
    name = unique("id")
    producer = await opened(owner, name, {tp: out(b"1", b"2")})
    await world.produce(tp, [b"behind"] * 3)
    await reader.assign({tp: 0})
    assert [r.value for r in await read(reader, {tp: 0}, {tp: 1})] == [b"before"]
    while reader.held_up() != {tp: HeldUp(first=1, behind=5)}:
        assert await reader.fetch(max_records=10, timeout=0.2) == []
    assert reader.behind() == 5

    found = (await world.cluster.open_transactions([tp]))[tp]
    assert (found.first, found.transactional_id) == (1, name)
    assert abs(found.last - time.time()) < 3600

    await producer.commit()
    await read(reader, {tp: 1}, {tp: 6})
    assert reader.held_up() == {}
    assert await world.cluster.open_transactions([tp]) == {}


async def test_of_two_open_transactions_the_first_is_told(world: World, owner: Any, tp: TP) -> None:
    first, second = unique("id"), unique("id")
    producer = await opened(owner, first, {tp: out(b"1")})
    other = await opened(owner, second, {tp: out(b"2")})
    assert (await world.cluster.open_transactions([tp]))[tp].transactional_id == first
    await producer.commit()
    while (found := (await world.cluster.open_transactions([tp]))[tp]).first == 0:
        pass  # the marker is written after the answer
    assert (found.first, found.transactional_id) == (1, second)
    await other.commit()


async def test_a_reader_knows_how_far_it_is_behind(world: World, reader: Reader, tp: TP) -> None:
    await world.produce(tp, [b"1", b"2", b"3"])
    await reader.assign({tp: 0})
    while not (batches := await reader.fetch(max_records=1, timeout=0.5)):
        pass
    assert sum(len(batch.records) for batch in batches) == 1
    assert reader.behind() == 2
    assert reader.behind_by_partition() == {tp: 2}
    await read(reader, {tp: 0}, {tp: 3})
    assert reader.behind() == 0
