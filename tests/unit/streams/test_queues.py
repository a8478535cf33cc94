"""What of a lane's queues is due: earliest first, none twice, and none of a partition that is left out."""

import pytest
from letters_kept import staging_over

from streams.ports import Store
from streams.retry import queue_rows as queues_module
from streams.retry.queue import Reason, WaitingQueue, begin, index_prefix, queue_name, set_queue
from streams.retry.queue_rows import Queues
from streams.staging.changes import QUEUES_BY_DUE, Writes
from streams.staging.keys import store_key
from streams.testing.store import MemoryStores

HANDLER = b"pay.take"
WAITS, PAUSED = index_prefix(HANDLER), index_prefix(HANDLER, Reason.PAUSED)
ALL = {WAITS: (), PAUSED: ()}


@pytest.fixture
def store() -> Store:
    return MemoryStores().open(0)


def put(store: Store, key: str, queue: WaitingQueue, partition: int = 0) -> bytes:
    """Commit a queue; its local key."""
    name = queue_name(HANDLER, key.encode())
    change = set_queue(name, queue)
    store.apply(Writes(60).of("lane", partition, [(change.key, change.value)]), {})
    return store_key(partition, name)


def waits(reason: Reason, due_ms: int) -> WaitingQueue:
    return begin(reason, due_ms=due_ms, attempts=0, size=1)


def test_what_is_due_comes_in_order_of_time(store: Store) -> None:
    due = [put(store, "c", waits(Reason.PAUSED, 2000)), put(store, "a", waits(Reason.RETRY, 3000))]
    due.insert(0, put(store, "b", waits(Reason.RETRY, 1000)))
    put(store, "d", waits(Reason.PAUSED, 9000))
    found = Queues(staging_over(store)).due(ALL, 5.0)
    assert [local for local, _ in found] == due


def test_a_drain_does_not_look_at_paused_queues(store: Store) -> None:
    put(store, "a", waits(Reason.PAUSED, 1000))
    local = put(store, "b", waits(Reason.BREAKER, 2000))
    queues = Queues(staging_over(store))
    assert [found for found, _ in queues.due({WAITS: ()}, 5.0)] == [local]
    assert list(queues.due_some_time("pay.take", 10)) == [local]


def test_an_entry_of_an_earlier_reason_is_dropped(store: Store) -> None:
    put(store, "a", waits(Reason.PAUSED, 1000))
    local = put(store, "a", waits(Reason.RETRY, 1000))
    assert len(list(store.scan(QUEUES_BY_DUE))) == 2
    assert [found for found, _ in Queues(staging_over(store)).due(ALL, 5.0)] == [local]
    assert len(list(store.scan(QUEUES_BY_DUE))) == 1


def test_partitions_left_out_are_passed_up_to_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_module, "MOST_PASSED", 5)
    for number in range(4):
        put(store, f"k{number}", waits(Reason.PAUSED, 1000 + number), partition=1)
    local = put(store, "a", waits(Reason.PAUSED, 2000))
    skipped = {WAITS: (), PAUSED: {b"\0\1"}}
    queues = Queues(staging_over(store))
    assert [found for found, _ in queues.due(skipped, 5.0)] == [local]
    put(store, "k4", waits(Reason.PAUSED, 1004), partition=1)
    assert list(queues.due(skipped, 5.0)) == []
    assert [found for found, _ in queues.due(skipped, 5.0)] == [local]
    earlier = put(store, "b", waits(Reason.RETRY, 1))
    assert next(queues.due(skipped, 5.0))[0] == earlier


def test_what_waits_for_a_person_is_not_due_some_time(store: Store) -> None:
    put(store, "a", waits(Reason.DEAD, 0))
    assert list(Queues(staging_over(store)).due_some_time("pay.take", 10)) == []
