"""What the fake broker does on purpose: its injected faults, and logs with holes and lost beginnings."""

import pytest

from streams.errors import ClusterUnavailable, Fenced, OutcomeUnknown, PositionLost
from streams.ports import TP, Outgoing
from streams.testing.broker import Fault
from streams.testing.clients import FakeReader, FakeTransactions
from streams.testing.cluster import FakeCluster

ROWS, OUT, SOURCE = TP("rows", 0), TP("out", 1), TP("source", 0)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster({"rows": 1, "out": 2, "source": 1}, now=lambda: 1000.0)


async def begun(cluster: FakeCluster, transactional_id: str = "lane-0") -> FakeTransactions:
    producer = cluster.transactions(transactional_id)
    await producer.start()
    await producer.begin()
    return producer


async def reading(cluster: FakeCluster, position: dict[TP, int]) -> FakeReader:
    reader = await cluster.reader()
    await reader.assign(position)
    return reader


def one(value: bytes = b"v", key: bytes = b"k") -> list[Outgoing]:
    return [Outgoing(key, value, [])]


async def commits(cluster: FakeCluster, fault: Fault) -> None:
    """A transaction whose owner is not told what became of its commit."""
    producer = await begun(cluster)
    await producer.send({ROWS: one()})
    await producer.send_offsets({SOURCE: 3}, "app")
    cluster.inject(fault)
    with pytest.raises(OutcomeUnknown):
        await producer.commit()


async def test_the_next_owner_finds_a_commit_that_was_done(cluster: FakeCluster) -> None:
    await commits(cluster, Fault.COMMIT_DONE)
    assert cluster.happened == {Fault.COMMIT_DONE: 1}
    await cluster.transactions("lane-0").start()
    assert await cluster.committed("app", [SOURCE]) == {SOURCE: 3}
    assert [r.value for r in cluster.visible("rows")] == [b"v"]


async def test_the_next_owner_aborts_a_commit_that_was_lost(cluster: FakeCluster) -> None:
    await commits(cluster, Fault.COMMIT_LOST)
    cluster.produce(ROWS, b"k", b"behind")
    assert cluster.visible("rows") == []
    await cluster.transactions("lane-0").start()
    assert await cluster.committed("app", [SOURCE]) == {}
    assert [r.value for r in cluster.visible("rows")] == [b"behind"]


@pytest.mark.parametrize(
    ("fault", "written"),
    [
        (Fault.SEND_REFUSED, {ROWS: 0, OUT: 0}),
        (Fault.SEND_TORN, {ROWS: 1, OUT: 0}),
        (Fault.SEND_UNANSWERED, {ROWS: 1, OUT: 1}),
    ],
)
async def test_a_failed_send_writes_what_its_fault_says(
    cluster: FakeCluster, fault: Fault, written: dict[TP, int]
) -> None:
    producer = await begun(cluster)
    cluster.inject(fault)
    with pytest.raises(OutcomeUnknown):
        await producer.send({ROWS: one(), OUT: one()})
    assert await cluster.end_offsets([ROWS, OUT]) == written
    with pytest.raises(OutcomeUnknown):
        await producer.commit()
    assert cluster.visible("rows") == cluster.visible("out") == []
    assert cluster.pending == []


async def test_refused_offsets_leave_the_group_alone(cluster: FakeCluster) -> None:
    producer = await begun(cluster)
    cluster.inject(Fault.OFFSETS_REFUSED)
    with pytest.raises(OutcomeUnknown):
        await producer.send_offsets({SOURCE: 3}, "app")
    await cluster.transactions("lane-0").start()
    assert await cluster.committed("app", [SOURCE]) == {}


async def test_a_start_without_answer_has_fenced_all_the_same(cluster: FakeCluster) -> None:
    first = await begun(cluster)
    cluster.inject(Fault.START_FAILED)
    with pytest.raises(OutcomeUnknown):
        await cluster.transactions("lane-0").start()
    with pytest.raises(Fenced):
        await first.send({ROWS: one()})


async def test_a_fault_waits_for_its_occasion(cluster: FakeCluster) -> None:
    cluster.inject(Fault.SEND_REFUSED, skip=2, times=2)
    outcomes = []
    for i in range(5):
        producer = await begun(cluster, f"lane-{i}")
        try:
            await producer.send({ROWS: one()})
            outcomes.append("sent")
        except OutcomeUnknown:
            outcomes.append("refused")
    assert outcomes == ["sent", "sent", "refused", "refused", "sent"]
    assert cluster.happened[Fault.SEND_REFUSED] == 2


async def test_a_delayed_fetch_loses_nothing(cluster: FakeCluster) -> None:
    cluster.produce(SOURCE, b"k", b"1")
    reader = await reading(cluster, {SOURCE: 0})
    cluster.inject(Fault.FETCH_DELAYED)
    assert await reader.fetch(max_records=5, timeout=1) == []
    (batch,) = await reader.fetch(max_records=5, timeout=1)
    assert [r.value for r in batch.records] == [b"1"]


async def test_an_unanswered_question_says_so(cluster: FakeCluster) -> None:
    cluster.inject(Fault.UNAVAILABLE, times=3)
    for question in (
        cluster.committed("app", [SOURCE]),
        cluster.begin_offsets([ROWS]),
        cluster.end_offsets([ROWS]),
    ):
        with pytest.raises(ClusterUnavailable):
            await question


async def test_an_expired_transaction_is_aborted_and_its_owner_fenced(cluster: FakeCluster) -> None:
    producer = await begun(cluster)
    await producer.send({ROWS: one()})
    cluster.expire("lane-0")
    with pytest.raises(Fenced):
        await producer.commit()
    assert cluster.visible("rows") == []


async def test_compaction_keeps_last_values_and_leaves_holes(cluster: FakeCluster) -> None:
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)]:
        cluster.produce(ROWS, key, value)
    producer = await begun(cluster)
    await producer.send({ROWS: one(b"open", b"a")})
    cluster.compact("rows")
    assert [(r.offset, r.key, r.value) for r in cluster.visible("rows")] == [(2, b"a", b"2"), (3, b"b", None)]
    cluster.compact("rows", delete_retention=0)
    reader = await reading(cluster, {ROWS: 0})
    (batch,) = await reader.fetch(max_records=5, timeout=1)
    assert ([r.offset for r in batch.records], batch.next_offset) == ([2], 4)


async def test_a_position_before_the_log_is_lost(cluster: FakeCluster) -> None:
    for i in range(6):
        cluster.produce(ROWS, b"k", b"%d" % i)
    cluster.compact("rows")
    cluster.truncate(ROWS, 2)
    reader = await reading(cluster, {ROWS: 3})
    (batch,) = await reader.fetch(max_records=5, timeout=1)
    assert [r.offset for r in batch.records] == [5]
    await reader.assign({ROWS: 1})
    with pytest.raises(PositionLost, match=r"1.*2 to 6"):
        await reader.fetch(max_records=5, timeout=1)


async def test_a_topic_made_anew_has_lost_every_position(cluster: FakeCluster) -> None:
    cluster.produce(ROWS, b"k", b"1")
    reader = await reading(cluster, {ROWS: 1})
    cluster.recreate_topic("rows")
    with pytest.raises(PositionLost):
        await reader.fetch(max_records=5, timeout=1)


async def test_records_carry_the_time_of_the_test(cluster: FakeCluster) -> None:
    cluster.produce(ROWS, b"k", b"1")
    cluster.produce(ROWS, b"k", b"2", timestamp=5)
    assert [r.timestamp for r in cluster.visible("rows")] == [1_000_000, 5]
