"""Requests of the producer and their repetition, with brokers that answer by a script."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, UnknownError

from streams.errors import ClockWrong, Fenced, OutcomeUnknown, RecordRefused, Refused
from streams.kafka.clients import KafkaOptions
from streams.kafka.transactions.batches import ProducerSequences
from streams.kafka.transactions.codes import error_of, passes, pause
from streams.kafka.transactions.limits import BatchLimits
from streams.kafka.transactions.link import BrokerLink
from streams.kafka.transactions.producer import TransactionalProducer
from streams.kafka.transactions.questions import Started
from streams.kafka.transactions.requests import (
    V1,
    V2,
    Codes,
    Owner,
    TransactionAnswer,
    TransactionProtocol,
    WrittenBatch,
)
from streams.ports import TP, Outgoing

PRODUCE, VERSIONS, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 18, 22, 24, 25, 26, 28
NOT_LEADER, NOT_COORDINATOR, CONCURRENT, NOT_ENOUGH = 6, 16, 51, 19
A, B, C = TP("a", 0), TP("b", 0), TP("c", 0)
GROUP = "group"
COORDINATOR = 9

Start = Callable[..., Awaitable[tuple[TransactionalProducer, "Brokers"]]]


class Brokers:
    """Answer each request as set, or well, and remember each request.

    Attributes:
        answers: for each kind of request what comes instead of a good answer, in this order: the code of an
            error, or an exception.
        leaders: who leads each partition.
        asked: the node and the kind of each request.
        open: how many requests are under way, and the most there have been.
    """

    def __init__(self, protocol: TransactionProtocol) -> None:
        self.protocol = protocol
        self.answers: dict[int, list[Any]] = {}
        self.leaders = {A: 1, B: 1, C: 1}
        self.asked: list[tuple[int, int]] = []
        self.batches: list[dict[TP, tuple[int, int, int]]] = []
        self.lookups = self.refreshes = 0
        #: The topics that there are; those that metadata is asked of, all while there are none; and those
        #: that are known from the last answer.
        self.topics = {"a", "b", "c"}
        self.tracked: set[str] = set()
        self.known = set(self.topics)
        self.open = self.most = 0
        self.ends: dict[TP, int] = {}
        #: What a topic takes, in bytes, and by how many seconds the producer's clock is ahead.
        self.limit, self.ahead = 10, 0.0
        self.owner = Owner("id", 70, 0)

    async def coordinator_lookup(self, *_: object) -> int:
        self.lookups += 1
        return COORDINATOR

    async def force_metadata_update(self) -> bool:
        self.refreshes += 1
        self.known = self.topics & self.tracked if self.tracked else set(self.topics)
        return True

    async def send(self, node: int, call: Any) -> Any:
        self.asked.append((node, call.API_KEY))
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        queued = self.answers.get(call.API_KEY)
        code = queued.pop(0) if queued else 0
        if isinstance(code, Exception):
            raise code
        return getattr(self, f"_{call.API_KEY}", self._codes)(call, code)

    def _codes(self, call: Any, code: int) -> Any:
        return Codes({A: code})

    def _25(self, call: Any, code: int) -> Any:
        return TransactionAnswer(code)

    def _18(self, call: Any, code: int) -> Any:
        return self.protocol

    def _32(self, call: Any, code: int) -> Any:
        return self.limit

    def _65(self, call: Any, code: int) -> Any:
        return Started(code, int((time.time() - self.ahead) * 1000))

    def _22(self, call: Any, code: int) -> Any:
        return TransactionAnswer(code, *self.owner[1:])

    def _26(self, call: Any, code: int) -> Any:
        if code or not self.protocol.enrols:
            return TransactionAnswer(code)
        producer_id, epoch = self.owner[1:]
        self.owner = Owner("id", producer_id, epoch + 1) if epoch < 1 else Owner("id", producer_id + 1, 0)
        return TransactionAnswer(0, *self.owner[1:])

    def _0(self, call: Any, code: int) -> Any:
        found, seen = {}, {}
        for tp, batch in self._batches(call):
            seen[tp] = struct.unpack_from(">qhi", batch, 43)
            (records,) = struct.unpack_from(">i", batch, 57)
            found[tp] = WrittenBatch(code, -1 if code else self.ends.get(tp, 0), "")
            if not code:
                self.ends[tp] = self.ends.get(tp, 0) + records
        self.batches.append(seen)
        return found

    def _batches(self, call: Any) -> list[tuple[TP, bytes]]:
        names = {call._form.string(tp.topic): tp for tp in self.leaders}
        found, tp = [], None
        for part in call._parts:
            tp = names.get(bytes(part), tp)
            if len(part) > 60:
                assert tp is not None
                found.append((tp, part))
        return found


class Connections:
    """Stands for aiokafka's client."""

    def __init__(self, brokers: Brokers) -> None:
        self.coordinator_lookup = brokers.coordinator_lookup
        self.force_metadata_update = brokers.force_metadata_update
        self.add_topic = brokers.tracked.add
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda tp: brokers.leaders.get(tp) if tp.topic in brokers.known else None,
            partitions_for_topic=lambda topic: {0} if topic in brokers.known else None,
        )
        self._brokers = brokers

    async def _get_conn(self, node: int, *, group: object) -> Any:
        queued = self._brokers.answers.get(-node)
        if queued:
            queued.pop(0)
            return None
        if node < 0:
            return None
        return SimpleNamespace(send=lambda call: self._brokers.send(node, call), close=lambda **_: None)

    async def close(self) -> None:
        pass


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a producer with brokers that speak a protocol."""

    async def started(protocol: TransactionProtocol, **options: Any) -> tuple[TransactionalProducer, Brokers]:
        brokers = Brokers(protocol)

        async def connect(link: BrokerLink) -> None:
            link.client = Connections(brokers)

        monkeypatch.setattr(BrokerLink, "open", connect)
        limits = options.pop("limits", None)
        more = {"starting": asyncio.Lock(), "closing": set[Any](), "limits": limits}
        producer = TransactionalProducer("nowhere:1", "id", KafkaOptions(**options), **more)  # type: ignore[arg-type]
        await producer.start()
        brokers.asked.clear()
        return producer, brokers

    return started


@pytest.fixture
def begin(start: Start) -> Start:
    async def begun(protocol: TransactionProtocol, **options: Any) -> tuple[TransactionalProducer, Brokers]:
        producer, brokers = await start(protocol, **options)
        await producer.begin()
        return producer, brokers

    return begun


def kinds(brokers: Brokers) -> list[int]:
    return [kind for _, kind in brokers.asked]


def records(count: int = 1, size: int = 10) -> list[Outgoing]:
    return [Outgoing(b"k", b"x" * size, []) for _ in range(count)]


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        (V1, {ADD_PARTITIONS: 1, PRODUCE: 1, ADD_OFFSETS: 1, COMMIT_OFFSETS: 1, END: 1}),
        (V2, {PRODUCE: 1, COMMIT_OFFSETS: 1, END: 1}),
    ],
)
async def test_a_transaction_has_one_request_of_each_kind(
    start: Start, protocol: TransactionProtocol, expected: dict[int, int]
) -> None:
    producer, brokers = await start(protocol)
    for _ in range(2):
        brokers.asked.clear()
        await producer.begin()
        await asyncio.gather(
            producer.send(dict.fromkeys((A, B, C), records(3))), producer.send_offsets({A: 1, B: 2}, GROUP)
        )
        await producer.commit()
        assert {kind: kinds(brokers).count(kind) for kind in kinds(brokers)} == expected


async def test_offsets_sent_beside_go_before_records_where_both_enrol(begin: Start) -> None:
    producer, brokers = await begin(V2)
    await asyncio.gather(producer.send({A: records()}), producer.send_offsets({B: 1}, GROUP))
    assert kinds(brokers) == [COMMIT_OFFSETS, PRODUCE]
    assert brokers.most == 1


async def test_what_a_transaction_has_is_not_added_again(begin: Start) -> None:
    producer, brokers = await begin(V1)
    for _ in range(2):
        await producer.send({A: records()})
        await producer.send_offsets({B: 1}, GROUP)
    await producer.send({A: records(), B: records()})
    assert kinds(brokers).count(ADD_PARTITIONS) == 2
    assert kinds(brokers).count(ADD_OFFSETS) == 1


@pytest.mark.parametrize("protocol", [V1, V2])
async def test_an_empty_transaction_asks_nobody(begin: Start, protocol: TransactionProtocol) -> None:
    producer, brokers = await begin(protocol)
    await producer.send({A: []})
    await producer.send_offsets({}, GROUP)
    await producer.commit()
    assert brokers.asked == []


async def test_numbers_go_on_within_an_epoch(start: Start) -> None:
    producer, brokers = await start(V1)
    for _ in range(2):
        await producer.begin()
        await producer.send({A: records(3), B: records(1)})
        await producer.commit()
    assert brokers.batches == [{A: (70, 0, 0), B: (70, 0, 0)}, {A: (70, 0, 3), B: (70, 0, 1)}]


async def test_the_end_raises_the_epoch_and_then_the_id(start: Start) -> None:
    producer, brokers = await start(V2)
    for _ in range(3):
        await producer.begin()
        await producer.send({A: records(3)})
        await producer.send({A: records(1)})
        await producer.commit()
    assert [batches[A] for batches in brokers.batches] == [
        (70, 0, 0), (70, 0, 3), (70, 1, 0), (70, 1, 3), (71, 0, 0), (71, 0, 3),
    ]  # fmt: skip


async def test_an_end_without_the_next_epoch_is_in_doubt(begin: Start, monkeypatch: Any) -> None:
    producer, brokers = await begin(V2)
    await producer.send({A: records()})
    monkeypatch.setattr(brokers, "_26", lambda call, code: TransactionAnswer(0), raising=False)
    with pytest.raises(OutcomeUnknown, match="next epoch"):
        await producer.commit()


@pytest.mark.parametrize(("protocol", "at_once"), [(V2, 1), (V1, 3)])
async def test_leaders_are_asked_in_turn_while_they_enrol(
    begin: Start, protocol: TransactionProtocol, at_once: int
) -> None:
    """And then side by side."""
    producer, brokers = await begin(protocol)
    brokers.leaders.update({A: 1, B: 2, C: 3})
    await producer.send(dict.fromkeys((A, B, C), records()))
    assert [node for node, kind in brokers.asked if kind == PRODUCE] == [1, 2, 3]
    assert brokers.most == at_once
    await producer.send(dict.fromkeys((A, B, C), records()))
    assert brokers.most == 3


async def test_a_partition_s_batches_follow_each_other(begin: Start) -> None:
    producer, brokers = await begin(V2, max_batch=1000)
    assert await producer.send({A: records(5, 400), B: records(1, 400)}) == {A: 5, B: 1}
    assert brokers.batches == [{A: (70, 0, 0), B: (70, 0, 0)}, {A: (70, 0, 2)}, {A: (70, 0, 4)}]


async def test_what_passes_is_asked_again_with_the_same_bytes(start: Start) -> None:
    producer, brokers = await start(V2)
    brokers.answers = {
        PRODUCE: [CONCURRENT, NOT_LEADER, NOT_ENOUGH],
        COMMIT_OFFSETS: [CONCURRENT, NOT_COORDINATOR],
        END: [14, 15, CONCURRENT],
    }
    refreshes, lookups = brokers.refreshes, brokers.lookups
    await producer.begin()
    assert await producer.send({A: records(2)}) == {A: 2}
    assert [each[A] for each in brokers.batches] == [(70, 0, 0)] * 4
    assert brokers.refreshes == refreshes + 1
    await producer.send_offsets({B: 1}, GROUP)
    await producer.commit()
    assert brokers.lookups == lookups + 2 + 1  # the group's twice, the transaction's once more
    assert not any(brokers.answers.values())


async def test_another_leader_is_looked_for_when_one_is_away(begin: Start) -> None:
    producer, brokers = await begin(V1)
    brokers.answers[-1] = ["down", "down"]
    assert await producer.send({A: records()}) == {A: 1}
    assert brokers.refreshes == 2
    assert kinds(brokers) == [ADD_PARTITIONS, PRODUCE]


@pytest.mark.promise("late-writes")
@pytest.mark.parametrize("lost", [PRODUCE, COMMIT_OFFSETS, END])
@pytest.mark.parametrize("protocol", [V1, V2])
async def test_a_request_whose_answer_was_lost_is_not_sent_again(
    begin: Start, protocol: TransactionProtocol, lost: int
) -> None:
    producer, brokers = await begin(protocol)
    brokers.answers[lost] = [KafkaConnectionError("broken")]

    async def transaction() -> None:
        await producer.send({A: records()})
        await producer.send_offsets({B: 1}, GROUP)
        await producer.commit()

    with pytest.raises(OutcomeUnknown, match="broken"):
        await transaction()
    assert kinds(brokers).count(lost) == 1
    asked = len(brokers.asked)
    for step in (producer.begin, lambda: producer.send({A: records()}), producer.commit):
        with pytest.raises(OutcomeUnknown):
            await step()
    assert len(brokers.asked) == asked


async def test_a_start_asks_again_also_when_its_answer_was_lost(start: Start, monkeypatch: Any) -> None:
    asked = Brokers.send
    lost = [KafkaConnectionError("broken"), KafkaConnectionError("broken")]

    async def send(self: Brokers, node: int, call: Any) -> Any:
        if call.API_KEY in (INIT, VERSIONS) and lost:
            raise lost.pop()
        return await asked(self, node, call)

    monkeypatch.setattr(Brokers, "send", send)
    await start(V2)
    assert lost == []


@pytest.mark.promise("refusals")
@pytest.mark.parametrize(
    ("protocol", "kind", "codes"),
    [
        (V1, Fenced, [47]), (V2, Fenced, [90, 49, 48]), (V1, OutcomeUnknown, [48, 45, 46, 999]),
        (V2, OutcomeUnknown, [120, 7]), (V1, Refused, [29]), (V1, RecordRefused, [87]),
        (V2, RecordRefused, [10, 18, 87]), (V1, ClockWrong, [32]), (V2, Refused, [44, 17, 2, 89]),
    ],
)  # fmt: skip
async def test_errors_that_do_not_pass_tell_what_they_mean(
    begin: Start, protocol: TransactionProtocol, kind: type[Exception], codes: list[int]
) -> None:
    for code in codes:
        producer, brokers = await begin(protocol)
        brokers.answers[PRODUCE] = [code]
        with pytest.raises(kind) as caught:
            await producer.send({A: records()})
        assert type(caught.value) is kind, code
        assert kinds(brokers).count(PRODUCE) == 1


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (3700, "clock is 3,700 s ahead of"),
        (-90_000, "clock is 90,000 s behind"),
        (5, "though the clocks agree"),
    ],
)
@pytest.mark.parametrize("protocol", [V1, V2])
async def test_a_refused_time_tells_the_difference_of_clocks(
    begin: Start, protocol: TransactionProtocol, ahead: float, said: str
) -> None:
    producer, brokers = await begin(protocol)
    brokers.answers[PRODUCE], brokers.ahead = [32], ahead
    with pytest.raises(ClockWrong, match=said) as caught:
        await producer.send({A: records()})
    assert caught.value.ahead == pytest.approx(ahead, abs=2.0)


async def test_where_nobody_tells_the_time_the_refusal_stands(begin: Start) -> None:
    producer, brokers = await begin(V2)
    brokers.answers[PRODUCE], brokers.answers[65] = [32], [KafkaConnectionError("broken")]
    with pytest.raises(ClockWrong, match="compare this machine's clock"):
        await producer.send({A: records()})


async def test_a_batch_over_a_limit_is_packed_smaller_next_time(begin: Start) -> None:
    producer, brokers = await begin(V2)
    many = [Outgoing(b"k", b"x" * 100, []) for _ in range(20)]
    brokers.answers[PRODUCE], brokers.limit = [10], 500
    with pytest.raises(Refused, match=r"whose max\.message\.bytes is 500"):
        await producer.send({A: many})
    again, others = await begin(V2, limits=producer._limits)
    await again.send({A: many})
    assert sum(1 for each in kinds(others) if each == PRODUCE) > 3


@pytest.mark.parametrize(
    ("told", "later", "batches"),
    [(500, 0.0, 7), (500, 100.0, 7), (2_000, 30.0, 7), (2_000, 100.0, 2), (1 << 20, 100.0, 1), (0, 700.0, 3)],
)
async def test_a_raised_limit_is_learnt(begin: Start, told: int, later: float, batches: int) -> None:
    """The limit was 500 bytes; it is asked for when it is a minute old, or tried where nobody tells it."""
    now = 0.0
    limits = BatchLimits(lambda: now)
    limits.refused("a", 2_500, 500 if told else None)
    if not told:
        limits.refused("a", 1_000, None)
    now = later
    producer, brokers = await begin(V2, limits=limits)
    brokers.limit = told
    many = [Outgoing(b"k", b"x" * 100, []) for _ in range(20)]
    await producer.send({A: many})
    assert len(brokers.batches) == batches


async def test_a_limit_without_an_answer_stays(begin: Start) -> None:
    limits = BatchLimits(iter((0.0, 100.0, 100.0, 100.0, 100.0)).__next__)
    limits.refused("a", 2_500, 500)
    producer, brokers = await begin(V2, limits=limits)
    brokers.answers[32] = [KafkaConnectionError("broken")]
    await producer.send({A: records()})
    assert limits.of("a", 1 << 20) == 500


async def test_a_commit_beside_another_step_is_none(begin: Start) -> None:
    producer, brokers = await begin(V1)
    sending = asyncio.ensure_future(producer.send({A: records()}))
    await asyncio.sleep(0)
    with pytest.raises(OutcomeUnknown, match="under way"):
        await producer.commit()
    await sending
    assert END not in kinds(brokers)


async def test_nothing_leaves_a_discarded_producer(begin: Start) -> None:
    """Also where a step was waiting for a connection, which opens at that moment."""
    producer, brokers = await begin(V2)
    opening, asking = asyncio.Event(), asyncio.Event()
    connect = producer._link.client._get_conn

    async def slow(*args: Any, **options: Any) -> Any:
        asking.set()
        await opening.wait()
        return await connect(*args, **options)

    producer._link.client._get_conn = slow
    sending = asyncio.ensure_future(producer.send({A: records()}))
    await asking.wait()
    opening.set()
    await producer.discard()
    with pytest.raises(OutcomeUnknown):
        await sending
    assert brokers.asked == []
    await producer.discard()


async def test_errors_that_pass_are_not_waited_for_without_end(start: Start) -> None:
    producer, brokers = await start(V1, step_timeout=0.05)
    brokers.answers[END] = [CONCURRENT] * 10_000
    await producer.begin()
    await producer.send({A: records()})
    with pytest.raises(OutcomeUnknown, match=r"no answer within 0.05 s; ConcurrentTransactions"):
        await producer.commit()


def test_numbers_begin_again_after_the_highest() -> None:
    sequences = ProducerSequences(Owner("id", 1, 1))
    sequences.written(A, 2**31 - 1)
    assert sequences.next(A) == 2**31 - 1
    sequences.written(A, 3)
    assert (sequences.next(A), sequences.next(B)) == (2, 0)
    sequences.renew(TransactionAnswer(0))
    assert sequences.next(A) == 2
    sequences.renew(TransactionAnswer(0, 1, 2))
    assert (sequences.next(A), sequences.owner) == (0, Owner("id", 1, 2))


async def test_leaders_stay_known_when_another_topic_is_asked_for(begin: Start) -> None:
    producer, brokers = await begin(V2)
    brokers.known = {"a", "b"}  # the third is made later
    await producer.send({A: records()})
    await producer.send({C: records()})
    assert await producer.send({A: records()}) == {A: 2}


def test_markers_are_waited_for_shortly_and_elections_longer() -> None:
    assert pause({CONCURRENT}, 1) < pause({CONCURRENT, NOT_ENOUGH}, 1) < pause({CONCURRENT, NOT_LEADER}, 1)
    assert passes(CONCURRENT)
    assert error_of(4711) is UnknownError


def test_whoever_waits_for_long_asks_less_and_less_often() -> None:
    pauses = [pause({CONCURRENT}, asked) for asked in range(1, 100)]
    assert pauses == sorted(pauses)
    assert sum(pauses[:4]) < 0.03  # markers are usually written by then
    assert pauses[-1] == pause({NOT_LEADER}, 10_000) == 0.2
