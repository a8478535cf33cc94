"""A reader names a partition to its broker once, and then what has changed; whatever the broker forgets."""

import time
from collections.abc import AsyncIterator
from itertools import count
from math import inf
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import NodeNotReadyError
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchRequest_v7, FetchRequest_v11
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from streams.local import Stack
from streams.ports import TP
from streams.positions.declared import TopicSpec
from streams.runtime.cluster import KafkaCluster
from streams.runtime.kafka import fetch_sessions
from streams.runtime.kafka.fetch_sessions import FetchRequest_v13, FetchSession, SessionFetch, Sessions
from streams.runtime.kafka.reader import KafkaReader
from streams.runtime.kafka.topics import KafkaTopics

PARTITIONS = 12
_numbers = count(time.time_ns())
NAMED = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 3), st.just(100)), min_size=1)


class Broker:
    """What a broker remembers of a session (KIP-227)."""

    def __init__(self) -> None:
        self.epoch = -1
        self.fetched: dict[TopicPartition, tuple[int, int]] = {}

    def fetch(self, session_id: int, request: tuple) -> int:  # type: ignore[type-arg]
        epoch, named, forgotten = request
        if epoch == 0:
            self.fetched, self.epoch = dict(named), 1
            return 0
        if session_id != 7 or epoch != self.epoch:
            return 70
        self.epoch += 1
        for tp in forgotten:
            del self.fetched[tp]
        self.fetched.update(named)
        return 0


@given(st.lists(st.tuples(NAMED, st.sampled_from(["answered", "lost", "restarted"])), max_size=12))
def test_the_broker_fetches_what_is_wanted_whatever_is_lost(rounds):
    session, broker = FetchSession(), Broker()
    for numbers, what in rounds:
        wanted = {TopicPartition("t", number): each for number, each in numbers.items()}
        error = broker.fetch(session.id, session.next(wanted))
        if not error:
            assert broker.fetched == wanted
        if what == "lost":
            session.reset()
            continue
        session.answered(7, error)
        if what == "restarted":
            broker = Broker()


class Answer:
    API_VERSION = 4

    def __init__(self, records: bytes | None = b"") -> None:
        self.topics = (("t", [(0, 0, records)]),)


def whole() -> FetchRequest:
    return FetchRequest(500, 1, 1000, 1, [("t", [(0, 5, 100), (1, 6, 100)]), ("u", [(0, 7, 100)])])


@pytest.mark.parametrize(("version", "leader"), [(FetchRequest_v7, ()), (FetchRequest_v11, (-1,))])
def test_a_request_names_what_has_changed(version, leader):
    session = FetchSession()
    first = SessionFetch(whole(), session).build(version)
    assert (first.session_id, first.session_epoch, len(first.topics)) == (0, 0, 2)
    session.answered(7, 0)
    moved = FetchRequest(500, 1, 1000, 1, [("t", [(0, 9, 100), (1, 6, 100)])])
    second = SessionFetch(moved, session).build(version)
    assert (second.session_id, second.session_epoch) == (7, 1)
    assert second.topics == [("t", [(0, *leader, 9, -1, 100)])]
    assert second.forgotten_topics_data == [("u", [0])]


@pytest.mark.parametrize(
    ("ids", "most", "version"),
    [
        ({"t": b"t" * 16, "u": b"u" * 16}, 17, FetchRequest_v13),
        ({"t": b"t" * 16, "u": b"u" * 16}, 12, FetchRequest_v11),
        ({"t": b"t" * 16}, 17, FetchRequest_v11),
        ({}, 17, FetchRequest_v11),
    ],
    ids=["by id", "an older broker", "one id alone", "by name"],
)
def test_topics_are_named_by_id_where_both_sides_know_all(ids, most, version):
    request = SessionFetch(whole(), FetchSession(), ids).prepare({1: (4, most)})
    assert type(request) is version
    named = [topic for topic, *_ in request.topics]
    assert named == ([ids["t"], ids["u"]] if version is FetchRequest_v13 else ["t", "u"])


def test_a_broker_without_sessions_is_asked_as_before():
    session = FetchSession()
    assert SessionFetch(whole(), session).build(FetchRequest_v4).topics == whole().topics
    assert session.incremental == 0


async def test_after_a_request_of_unknown_fate_the_next_says_all():
    async def lost(*_: object) -> None:
        raise NodeNotReadyError

    sessions = Sessions(lost)
    sessions.of[1].next({TopicPartition("t", 0): (5, 100)})
    sessions.of[1].answered(7, 0)
    with pytest.raises(NodeNotReadyError):
        await sessions.send(1, whole())
    assert sessions.of[1].id == 0
    assert sessions.of[1].next({})[0] == 0


async def test_silence_is_that_of_the_most_silent_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    now, refuses = 100.0, False
    monkeypatch.setattr(fetch_sessions, "monotonic", lambda: now)

    async def answered(node: int, *_: object) -> Answer:
        if node == 2 and refuses:
            raise NodeNotReadyError
        return Answer()

    sessions = Sessions(answered)
    await sessions.send(1, whole())
    assert sessions.silence(103.0, {1}) == 3.0
    assert sessions.silence(103.0, {1, 2}) == sessions.silence(103.0, {1, None}) == inf
    await sessions.send(2, whole())
    now, refuses = 105.0, True
    await sessions.send(1, whole())
    with pytest.raises(NodeNotReadyError):
        await sessions.send(2, whole())
    assert sessions.silence(105.5, {1, 2}) == 5.5
    assert sessions.silence(105.5, {1}) == 0.5  # the other one leads nothing of it any more


@pytest.mark.parametrize(
    ("records", "busy", "rests"),
    [
        (None, 0.015, []),  # as some brokers say that there are none
        (b"x", 0.001, [0.01]),
        (b"x", 0.015, [0.015]),
        (b"x", 5.0, [0.02]),
        (b"x" * (1 << 20), 0.015, []),
    ],
)
async def test_a_reader_rests_after_an_answer_that_brought_little(monkeypatch, records, busy, rests):
    now, sleep = 0.0, AsyncMock()
    monkeypatch.setattr(fetch_sessions, "monotonic", lambda: now)
    monkeypatch.setattr(fetch_sessions, "asyncio", SimpleNamespace(sleep=sleep))
    sessions = Sessions(AsyncMock(return_value=Answer(records)))
    await sessions.send(1, whole())
    now = busy
    await sessions.send(2, whole())  # another broker brought nothing yet
    assert not sleep.await_count
    await sessions.send(1, whole())
    assert [each.args[0] for each in sleep.await_args_list] == rests


class Reading:
    def __init__(self, stack: Stack, topic: str, reader: KafkaReader) -> None:
        self._stack = stack
        self._topic = topic
        self.reader = reader
        self.read: list[bytes] = []

    @property
    def session(self) -> FetchSession:
        (session,) = self.reader._sessions.of.values()
        return session

    async def write(self, value: bytes, partition: int = 0) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._stack.bootstrap) as producer:
            await producer.send_and_wait(self._topic, value, partition=partition)

    async def until(self, value: bytes) -> None:
        while value not in self.read:
            for batch in await self.reader.fetch(max_records=100, timeout=0.5):
                self.read += [record.value or b"" for record in batch.records]


@pytest.fixture
async def reading(kafka: Stack) -> AsyncIterator[Reading]:
    topic = f"sessions-{next(_numbers)}"
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create([TopicSpec(topic, PARTITIONS, 1)])
    cluster = KafkaCluster(kafka.bootstrap)
    reader = await cluster.reader()
    await reader.assign({TP(topic, partition): 0 for partition in range(PARTITIONS)})
    yield Reading(kafka, topic, reader)
    await reader.close()
    await cluster.close()


@pytest.mark.stack
async def test_a_real_broker_keeps_the_session(reading: Reading) -> None:
    for number in range(PARTITIONS):
        await reading.write(b"%d" % number, number)
        await reading.until(b"%d" % number)
    assert reading.session.id
    assert reading.session.incremental >= PARTITIONS - 1  # all but the first request
    assert len(reading.read) == PARTITIONS
    assert reading.reader.silence() < inf


@pytest.mark.stack
async def test_a_session_lost_by_the_broker_reads_nothing_twice(reading: Reading) -> None:
    await reading.write(b"before")
    await reading.until(b"before")
    lost = reading.session.id
    reading.session.id = lost + 1
    await reading.write(b"after", 3)
    await reading.until(b"after")
    await reading.write(b"and after that", 4)
    await reading.until(b"and after that")
    assert reading.session.id not in (0, lost + 1)
    assert reading.read == [b"before", b"after", b"and after that"]
