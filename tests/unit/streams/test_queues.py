"""What of a lane's queues is due, heads that do not run after all, and turns that are too long."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from letters_kept import staging_over
from structlog.testing import capture_logs

from streams.engine.staging.arrival import Counters
from streams.engine.staging.changes import QUEUES_BY_DUE, Change, Writes
from streams.engine.staging.keys import store_key
from streams.engine.waiting import queue_rows as queues_module
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import Reason, WaitingQueue, begin, index_prefix, queue_name, set_queue
from streams.engine.waiting.queue_rows import Queues
from streams.engine.waiting.waiting import Waiting
from streams.engine.way.permission import is_overtaken
from streams.engine.way.turns import Turns
from streams.model.envelope import RECORD_OVERHEAD
from streams.model.policy.breaker import NO_PERMIT, BreakerPolicy
from streams.ports import Store
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


PROBES = BreakerPolicy(minimum=1, open_for=5.0, max_open_for=5.0, probes=2)
QUEUE = b"\0\0bench.count\0a"


def test_a_head_that_waits_on_gives_its_probe_back() -> None:
    gate = HandlerGate("bench.count", PROBES)
    gate.record(NO_PERMIT, ok=False, now=0.0)
    permits = [gate.breaker.acquire(5.0) for _ in range(3)]
    assert [permit is not None for permit in permits] == [True, True, False]
    gate.running.add(QUEUE)
    queues = SimpleNamespace(get=lambda _: None)  # an operator has taken it out
    waiting: Any = SimpleNamespace(gates={"bench.count": gate}, queues=queues)
    arrival: Any = SimpleNamespace(
        queue=QUEUE,
        number=0,
        attempt=SimpleNamespace(permit=permits[0]),
        entry=SimpleNamespace(prefix=b"\0\0"),
        handler=SimpleNamespace(name="bench.count"),
    )
    assert is_overtaken(waiting, arrival)
    assert gate.running == set()
    assert gate.breaker.acquire(5.0) is not None


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
def test_what_waits_is_no_larger_than_a_record(size: int, fits: bool) -> None:
    options = SimpleNamespace(max_message_bytes=1000 + RECORD_OVERHEAD)
    app = SimpleNamespace(lane_options=options, routes={}, handlers={})
    outcomes: Any = SimpleNamespace(staging=SimpleNamespace(app=app, store=None))
    letters: Any = None
    waiting = Waiting(outcomes, letters, {})
    rows = [Change("lane", b"k", b"small"), Change("lane", b"k" * 10, b"v" * (size - 10))]
    assert (waiting.too_large(rows) is None) is fits


class Taken(NamedTuple):
    """A message, as far as is told of it."""

    key: bytes = b"key"
    value: bytes = b"value"


@pytest.mark.promise("slow-handlers")
def test_long_turns_are_counted_and_told_of_every_ten_seconds() -> None:
    counters = Counters()
    turns = Turns(counters)
    taken: Any = SimpleNamespace(record=Taken(), key=b"k")
    with capture_logs() as logs:
        for at, seconds in ((100.0, 0.4), (110.0, 0.6), (119.0, 0.6), (121.0, 0.6)):
            turns.ended("bench.count", taken, at - seconds, at)
    assert counters.held_loop == 3
    assert [(each["event"], each["handler"]) for each in logs] == [("handler_held_loop", "bench.count")] * 2
