"""The fetches of a reader, from brokers that fail, move partitions, and forget sessions."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import Signature, signature
from io import BytesIO
from itertools import count, groupby
from math import inf
from struct import pack
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.errors import LogCut
from streams.kafka import fetch_sources, fetcher
from streams.kafka.fetch_sessions import OUT_OF_RANGE, Bounds, FetchSession
from streams.kafka.fetcher import Fetcher
from streams.kafka.partition_records import Isolation
from streams.kafka.wire import CLASSIC, FLEXIBLE, ResponseReader
from streams.ports import TP
from streams.testing.batches import batch, record
from streams.testing.loop import SimulatedLoop
from tests.effort import examples

IDS = {"t": b"t" * 16, "u": b"u" * 16}
NAMES = {topic_id: topic for topic, topic_id in IDS.items()}
FIRST, SECOND, THIRD = TPS = TP("t", 0), TP("t", 1), TP("u", 0)
NODES = 1, 2, 3
LEADERS: dict[TP, int | None] = {FIRST: 1, SECOND: 1, THIRD: 2}
BOUNDS = Bounds(2000, 50_000, 10_000)
NOT_LEADER, NO_ACCESS = 6, 29
#: By version: its form, a partition of a request, and what comes there beside its number and its offset.
FORMS = {
    11: (CLASSIC, struct.Struct(">iiqqi"), (-1, -1, BOUNDS.partition_size)),
    13: (FLEXIBLE, struct.Struct(">iiqiqi"), (-1, -1, BOUNDS.partition_size)),
}


def parsed(version: int, message: bytes) -> tuple[int, int, dict[TP, int], list[TP]]:
    """Of a request the session's id, the epoch, offsets, and what is to be forgotten."""
    form, fields, rest = FORMS[version]
    read = ResponseReader(message, form)

    def rows(fields: struct.Struct) -> list[tuple[TP, list[int]]]:
        found = []
        for _ in range(read.count()):
            topic = NAMES[read.bytes(16)] if form.flexible else read.string()
            for _ in range(read.count()):
                number, *row = read.take(fields)
                found.append((TP(topic, number), row))
                assert not row or read.tags() == []
            read.tags()
        return found

    *head, session_id, epoch = read.take(struct.Struct(">iiiibii"))
    assert head == [-1, BOUNDS.wait, 1, BOUNDS.size, 1]
    named, forgotten = rows(fields), rows(struct.Struct(">i"))
    # By ids there is the epoch of what was read before, too.
    assert all((row[0], *row[2 + form.flexible :]) == rest for _, row in named)
    assert (read.string(), read.tags(), read._at) == ("", [], len(message))
    return session_id, epoch, {tp: row[1] for tp, row in named}, [tp for tp, _ in forgotten]


def encoded(
    version: int,
    error: int,
    session_id: int,
    found: list[tuple[TP, Any]],
    diverges: Mapping[TP, tuple[int, int]] = MappingProxyType({}),
) -> bytes:
    """An answer, with errors, ends, aborted transactions and records of partitions."""
    form, *_ = FORMS[version]
    topics = [(topic, list(each)) for topic, each in groupby(sorted(found), lambda row: row[0].topic)]
    body = pack(">ihi", 0, error, session_id) + form.count(len(topics))
    for topic, rows in topics:
        body += (IDS[topic] if form.flexible else form.string(topic)) + form.count(len(rows))
        for tp, (code, end, aborted, data) in rows:
            body += pack(">ihqqq", tp.partition, code, end, end, 0) + form.count(len(aborted))
            body += b"".join(pack(">qq", *each) + form.tags for each in aborted)
            body += pack(">i", -1) + form.count(len(data)) + data
            body += b"\1\0\x0d" + pack(">iq", *diverges[tp]) + b"\0" if tp in diverges else form.tags
        body += form.tags
    return body + form.tags


class Log:
    """A partition: records whose values are their offsets, and transactions that were aborted."""

    def __init__(self) -> None:
        self.end = 0
        self.visible: list[int] = []
        self.aborted: list[tuple[int, int]] = []
        self._batches: list[tuple[int, bytes]] = []

    def append(self, count: int, *, is_aborted: bool) -> None:
        first, pairs = self.end, [(b"k", b"%d" % each) for each in range(self.end, self.end + count)]
        self._write(pairs, 0x10 * is_aborted, first)
        if is_aborted:
            self.aborted.append((first, first))  # the producer has the number of its first offset
            self._write([(bytes(4), bytes(6))], 0x30, first)
        else:
            self.visible += range(first, self.end)

    def _write(self, pairs: list[tuple[bytes, bytes]], attributes: int, producer: int) -> None:
        records = [record(number, *pair) for number, pair in enumerate(pairs)]
        self.write_raw(
            batch(records, base=self.end, attributes=attributes, producer_id=producer), len(records)
        )

    def write_raw(self, raw: bytes, records: int = 1) -> None:
        self.end += records
        self._batches.append((self.end, raw))

    def read(self, offset: int, most: int, *, is_first: bool) -> bytes:
        """As brokers do: so many bytes, the last batch cut off. Where the first one does not fit in, all of
        it of the first partition with records, and nothing of others.
        """
        found = [raw for end, raw in self._batches if end > offset]
        if found and most < len(found[0]):
            return found[0] if is_first else b""
        return b"".join(found)[:most]


class Broker:
    def __init__(self, world: "World", node: int) -> None:
        self._world, self._node = world, node
        self.version = 17
        #: When requests have come, by the loop's time; what becomes of the next ones.
        self.times: list[float] = []
        self.faults: list[str] = []
        #: As KIP-227 has them.
        self.sessions: dict[int, Any] = {}
        self.keeps, self.has_forgotten = True, False

    async def answer(self, version: int, message: bytes, wanted: Mapping[TP, int]) -> bytes:
        assert version in self._world.versions
        number, epoch, named, forgotten = parsed(version, message)
        session = self.sessions.get(number)
        if epoch == 0:
            self.has_forgotten = False
            session = SimpleNamespace(version=version, epoch=0, offsets={}, ends={})
            number = next(self._world.session_ids) if self.keeps else 0
            self.sessions |= {number: session} if self.keeps else {}
        if session is None:
            assert self.has_forgotten
            return encoded(version, 70, 0, [])
        if session.version != version:
            return encoded(version, 106, 0, [])
        assert session.epoch == epoch
        session.epoch += 1
        session.offsets = {tp: at for tp, at in session.offsets.items() if tp not in forgotten} | named
        assert session.offsets == wanted
        if wanted and not any(error or data for error, _, _, data in self._read(session.offsets).values()):
            await asyncio.sleep(BOUNDS.wait / 1000)
        found = []
        for tp, (error, end, aborted, data) in self._read(session.offsets).items():
            if error or data or session.ends.get(tp) != end:
                found.append((tp, (error, end, aborted, data)))
            session.ends[tp] = end
            if data:  # it comes last in the next answer
                session.offsets[tp] = session.offsets.pop(tp)
        return encoded(version, 0, number, found, self._world.diverges)

    def _read(self, offsets: Mapping[TP, int]) -> dict[TP, Any]:
        """Partitions, with records as far as they fit in."""
        found: dict[TP, Any] = {}
        left, is_first = self._world.most, True
        for tp, offset in offsets.items():
            log = self._world.logs[tp]
            error = self._world.errors.get(tp, 0) or NOT_LEADER * (self._world.leaders[tp] != self._node)
            data = b"" if error else log.read(offset, left, is_first=is_first)
            left, is_first = max(0, left - len(data)), is_first and not data
            found[tp] = (error, -1, [], b"") if error else (0, log.end, log.aborted if data else [], data)
        return found


class World:
    """A fetcher with what it reads; in the place of its client, too."""

    def __init__(self) -> None:
        self.logs = {tp: Log() for tp in TPS}
        self.leaders = dict(LEADERS)
        self.errors: dict[TP, int] = {}
        self.diverges: dict[TP, tuple[int, int]] = {}
        self.most = 10_000
        self.versions: set[int] = set()
        self.session_ids = count(1)
        self.brokers = {node: Broker(self, node) for node in NODES}
        self.closed: list[int] = []
        self._conns = {n: SimpleNamespace(close=lambda n=n: self.closed.append(n)) for n in NODES}
        self._known, self._next = dict(LEADERS), dict.fromkeys(TPS, 0)
        self._listeners: set[Callable[[Any], None]] = set()
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda tp: self._known[tp],
            add_listener=self._listeners.add,
            remove_listener=self._listeners.remove,
        )
        self.fetcher = Fetcher(self, BOUNDS, Isolation(1 << 20))

    # As aiokafka's client.

    async def close(self) -> None:
        assert not self._listeners
        self.closed.append(0)

    def refresh(self) -> None:
        self._known = dict(self.leaders)
        for listener in list(self._listeners):
            listener(self.cluster)

    def force_metadata_update(self) -> None:
        asyncio.get_running_loop().call_later(0.001, self.refresh)

    async def send(self, node: int, request: Any) -> Any:
        places = self.fetcher.places.items()
        wanted = {tp: place.position for tp, place in places if self._known[tp] == node}
        broker = self.brokers[node]
        broker.times.append(asyncio.get_running_loop().time())
        fault = broker.faults.pop(0) if broker.faults else ""
        await asyncio.sleep(0.001)  # as it connects
        if fault == "refused":
            asyncio.get_running_loop().call_soon(self.refresh)
            raise NodeNotReadyError
        built = request.prepare({1: (4, broker.version)})
        if fault == "lost":
            raise KafkaConnectionError
        body = await broker.answer(built.API_VERSION, built.encode(), wanted)
        await asyncio.sleep(2 * (fault == "late"))
        if fault == "answer lost":
            raise KafkaConnectionError
        return built.decode(BytesIO(body[:3] if fault == "cut off" else body))

    # The events.

    def append(self, tp: TP, count: int = 1, *, is_aborted: bool = False) -> None:
        self.logs[tp].append(count, is_aborted=is_aborted)

    def move(self, tp: TP, leader: int | None, *, is_known: bool = True) -> None:
        self.leaders[tp] = leader
        if is_known:
            self.refresh()

    def fault(self, node: int, *faults: str) -> None:
        self.brokers[node].faults = list(faults)

    def forget(self, node: int, *, keeps: bool) -> None:
        broker = self.brokers[node]
        broker.sessions.clear()
        broker.has_forgotten, broker.keeps = True, keeps

    def fail(self, tp: TP, error: int) -> None:
        self.errors[tp] = error

    def bound(self, most: int) -> None:
        self.most = most

    async def begin(self, positions: Mapping[TP, int], *, by_id: bool = True) -> None:
        await self.fetcher.end()
        assert len(asyncio.all_tasks()) == 1
        self._next = {tp: min(offset, self.logs[tp].end) for tp, offset in positions.items()}
        assert self.fetcher.take(100) == []
        ids = IDS if by_id else {"t": IDS["t"]}
        is_old = any(broker.version < 13 for broker in self.brokers.values())
        is_by_name = not {tp.topic for tp in positions} <= ids.keys()
        self.versions = {11} if is_by_name else {11, 13} if is_old else {13}
        self.fetcher.begin(self._next, ids)
        assert self.fetcher.check() is None

    async def arrived(self) -> None:
        async with asyncio.timeout(1):
            await self.fetcher.wait(9)

    def take(self, most: int) -> None:
        assert self.fetcher.check() is None
        batches = self.fetcher.take(most)
        assert sum(len(each.records) for each in batches) <= most
        for tp, records, after in batches:
            before, self._next[tp] = self._next[tp], after
            assert before < after == self.fetcher.places[tp].position
            expected = [(each, b"%d" % each) for each in self.logs[tp].visible if before <= each < after]
            assert [(each.offset, each.value) for each in records] == expected

    async def read_all(self) -> None:
        """With no faults any more all is read, and then known to be."""
        self.errors.clear()
        self.leaders |= {tp: LEADERS[tp] for tp, leader in self.leaders.items() if leader not in NODES}
        for broker in self.brokers.values():
            broker.faults.clear()
        for _ in range(1000):
            if all(self.logs[tp].end == offset for tp, offset in self._next.items()):
                break
            await self.fetcher.wait(1.0)
            self.take(3)
        else:
            raise AssertionError(f"read to {self._next}")
        for _ in range(4):
            self.take(3)
            await asyncio.sleep(2)
        places = self.fetcher.places
        ends = {tp: (self.logs[tp].end, self.logs[tp].end) for tp in self._next}
        assert {tp: (place.end, place.stable) for tp, place in places.items()} == ends
        assert not self.fetcher.unknown
        assert self.fetcher.silence() < 2.1 or not places


def simulated(main: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test in a new world, in which no wait takes time."""

    async def whole(*args: Any, **options: Any) -> None:
        world = World()
        await main(world, *args, **options)
        await world.fetcher.close()
        assert world.closed[-1] == 0
        assert len(asyncio.all_tasks()) == 1

    @wraps(main)
    def run(*args: Any, **options: Any) -> None:
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner, pytest.MonkeyPatch.context() as patch:
            loop = cast(SimulatedLoop, runner.get_loop())
            loop.simulate()
            for module in (fetcher, fetch_sources):
                patch.setattr(module, "monotonic", loop.time)
            runner.run(whole(*args, **options))

    _, *others = signature(main).parameters.values()
    run.__signature__ = Signature(others)  # type: ignore[attr-defined]  # as pytest and hypothesis see it
    return run


def event(name: str, *parts: Any, **named: Any) -> Any:
    return st.tuples(st.just(name), st.tuples(*parts), st.fixed_dictionaries(named))


tps, nodes, flags = st.sampled_from(TPS), st.sampled_from(NODES), st.booleans()
EVENTS = st.one_of(
    event("append", tps, st.integers(1, 4), is_aborted=flags),
    event("take", st.integers(1, 4)),
    event("move", tps, st.sampled_from([*NODES, -1, None]), is_known=flags),
    event("fault", nodes, st.sampled_from(["refused", "lost", "late", "answer lost"])),
    event("forget", nodes, keeps=flags),
    event("fail", tps, st.sampled_from([0, 0, 0, 3, 100, 103, 6, 74, -1, 2])),
    event("bound", st.sampled_from([1, 150, 10_000])),
    event("begin", st.dictionaries(tps, st.integers(0, 9)), by_id=flags),
)
PAUSES = st.sampled_from([0, 0, 0.0015, 0.03, 0.5, 3])


@settings(max_examples=examples(400))
@given(st.sets(nodes), st.lists(st.tuples(PAUSES, EVENTS), max_size=40), flags)
@simulated
async def test_each_record_comes_once_and_in_order(
    world: World, old: set[int], events: list[Any], returns: bool
) -> None:
    for node in old:
        world.brokers[node].version = 12
    await world.begin(dict.fromkeys(TPS, 0))
    for pause, (name, args, named) in events:
        await asyncio.sleep(pause)
        if (done := getattr(world, name)(*args, **named)) is not None:
            await done
    world.leaders |= LEADERS if returns else {}
    await world.read_all()


def test_a_request_names_what_has_changed() -> None:
    session, wanted = FetchSession(), {FIRST: 5, SECOND: 6, THIRD: 7}
    assert session.next(wanted) == (0, wanted, [])
    session.answered(7, 0)
    assert session.next({FIRST: 9, SECOND: 6}) == (1, {FIRST: 9}, [THIRD])
    session._epoch = 2**31 - 1
    assert [session.next({})[0] for _ in range(3)] == [2**31 - 1, 1, 2]


@simulated
async def test_records_are_taken_before_more_are_fetched(world: World) -> None:
    world.append(FIRST, 4)
    world.append(SECOND, 4)
    await world.begin({FIRST: 0, SECOND: 0})
    await world.arrived()
    for _ in range(4):
        world.take(2)
        await asyncio.sleep(1)
    assert len(world.brokers[1].times) == 1
    await world.read_all()


@pytest.mark.parametrize("taken", [0, 1, 9])
@simulated
async def test_a_late_answer_of_a_former_leader_is_dropped(world: World, taken: int) -> None:
    world.append(FIRST, 2)
    world.fault(1, "late")
    await world.begin({FIRST: 0})
    await asyncio.sleep(0.1)
    world.append(FIRST, 2)
    world.move(FIRST, 2)
    await world.arrived()
    world.take(taken)
    await asyncio.sleep(5)
    assert world.fetcher.places[FIRST].end == 4
    await world.read_all()


@simulated
async def test_an_offset_out_of_range_is_given_to_the_reader(world: World) -> None:
    world.fail(SECOND, OUT_OF_RANGE)
    await world.begin({FIRST: 0, SECOND: 0})
    await world.arrived()
    assert world.fetcher.check() is world.fetcher.places[SECOND]
    await world.begin({FIRST: 0})


@pytest.mark.parametrize("error", [TopicAuthorizationFailedError, struct.error])
@simulated
async def test_an_error_that_does_not_pass_is_raised(world: World, error: type[Exception]) -> None:
    if error is struct.error:
        world.append(FIRST)
        world.fault(1, "cut off")
    else:
        world.fail(FIRST, NO_ACCESS)
    await world.begin(dict.fromkeys(TPS, 0))
    await world.arrived()
    with pytest.raises(error):
        world.fetcher.check()
    await world.begin({THIRD: 0})


@pytest.mark.parametrize(("length", "error"), [(3, ValueError), (1 << 20, CorruptRecordException)])
@simulated
async def test_what_is_before_a_damaged_length_is_read(
    world: World, length: int, error: type[Exception]
) -> None:
    world.append(SECOND, 2)
    world.append(FIRST, 2)
    raw = batch([record(0, b"k", b"v")], base=2)
    world.logs[FIRST].write_raw(raw[:8] + pack(">i", length) + raw[12:])
    await world.begin({SECOND: 0, FIRST: 0})
    await world.arrived()
    world.take(9)
    assert {tp: place.position for tp, place in world.fetcher.places.items()} == {SECOND: 2, FIRST: 2}
    await world.arrived()
    with pytest.raises(error):
        world.take(9)
    await world.begin({THIRD: 0})


@pytest.mark.parametrize("error", [3, 100, 103])
@simulated
async def test_unknown_topics_come_and_go(world: World, error: int) -> None:
    await world.begin(dict.fromkeys(TPS, 0))
    for code, unknown in ((error, {"u"}), (0, set()), (error, {"u"})):
        world.fail(THIRD, code)
        await asyncio.sleep(5)
        assert world.fetcher.unknown == unknown
    await world.begin({FIRST: 0})
    assert not world.fetcher.unknown


@simulated
async def test_silence_is_that_of_the_most_silent_leader(world: World) -> None:
    world.fault(2, *["refused"] * 1000)
    await world.begin({FIRST: 0, THIRD: 0})
    await asyncio.sleep(3)
    assert world.fetcher.silence() == inf
    world.fault(2)
    await asyncio.sleep(3)
    assert world.fetcher.silence() < 2.1
    world.fault(2, *["refused"] * 1000)
    await asyncio.sleep(9)
    assert 6.9 < world.fetcher.silence() < 9.1
    world.move(THIRD, -1)
    assert world.fetcher.silence() == inf
    world.move(THIRD, 1)
    await asyncio.sleep(5)
    assert world.fetcher.silence() < 2.1


@pytest.mark.parametrize(
    ("records", "busy", "rest"), [(1, 0.001, 0.02), (1, 0.025, 0.025), (1, 5.0, 0.03), (10_000, 0.025, 0.0)]
)
@simulated
async def test_a_reader_rests_after_little(world: World, records: int, busy: float, rest: float) -> None:
    world.bound(1 << 20)
    world.append(FIRST, records)
    await world.begin({FIRST: 0})
    await world.arrived()
    await asyncio.sleep(busy)
    world.take(records + 1)
    await asyncio.sleep(5)
    first, second, third, *_ = world.brokers[1].times
    assert second - first == pytest.approx(0.001 + busy + rest)
    assert third - second == pytest.approx(2.001)  # nothing has come: no rest


@simulated
async def test_connections_that_wait_for_an_answer_are_closed(world: World) -> None:
    await world.begin({FIRST: 0})
    await asyncio.sleep(0.2)
    for _ in range(2):
        await world.fetcher.end()
        assert world.closed == list(NODES)


@simulated
async def test_an_error_of_before_is_not_raised_later(world: World) -> None:
    await world.begin({FIRST: 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "send", None)  # not to be called
        await asyncio.sleep(0)
    await world.begin({FIRST: 0})


@simulated
async def test_a_fetcher_is_closed_twice(world: World) -> None:
    await world.fetcher.close()


@simulated
async def test_a_partition_is_silent_until_its_new_leader_answers(world: World) -> None:
    await world.begin({FIRST: 0, THIRD: 0})
    await asyncio.sleep(3)
    world.fault(2, *["refused"] * 1000)
    await asyncio.sleep(9)
    world.move(THIRD, 1)
    assert world.fetcher.silence() > 6.9


@simulated
async def test_a_log_that_lost_what_was_read_is_noticed(world: World) -> None:
    world.append(FIRST, 5)
    await world.begin({FIRST: 0})
    await world.arrived()
    world.take(9)
    world.diverges[FIRST] = (0, 3)
    world.append(FIRST)  # as a leader that answers so has no records in its answer, this is not read
    await world.fetcher.wait(9)
    await asyncio.sleep(1)
    with pytest.raises(LogCut, match=r"from offset 3 to 5,"):
        world.fetcher.check()
    assert world.fetcher.take(9) == []


@simulated
async def test_a_lost_epoch_above_what_was_read_changes_nothing(world: World) -> None:
    world.append(FIRST, 5)
    await world.begin({FIRST: 0})
    await world.arrived()
    world.take(9)
    world.diverges[FIRST] = (7, 5)
    world.append(FIRST, 2)
    await asyncio.sleep(1)
    assert world.fetcher.check() is None
    assert world.fetcher.places[FIRST].epoch == 7
    world.diverges.clear()
    await world.read_all()


@simulated
async def test_no_partition_waits_for_the_end_of_others(world: World) -> None:
    """Where a broker keeps no session: in one, it takes turns."""
    world.forget(1, keeps=False)
    world.bound(1)
    for tp in (*[FIRST] * 9, SECOND):
        world.append(tp)
    await world.begin({FIRST: 0, SECOND: 0})
    for _ in range(3):
        await world.arrived()
        world.take(9)
    assert world.fetcher.places[SECOND].position == 1
