"""What the sagas section puts into topics is what a lane would find there, and it notices what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from agents.commands import CancelOrder, CapturePayment, OrderSagaReply, OrderSubmitted, ReleaseStock
from agents.order_saga import OrderSaga
from benchmarks.growth.ground import GrowthGround
from benchmarks.sagas.counts import CASES, count, full_row_bytes
from benchmarks.sagas.flight import STEPS, SeenSagas, name_of, replies, submitted
from benchmarks.sagas.timer_workload import TIMERS, rang_topic
from benchmarks.sagas.timers import Rung, timer_messages, waiting_timers
from benchmarks.sagas.workload import FLIGHT
from benchmarks.sections import NotMeasured
from streams.engine.staging.changes import Writes
from streams.engine.staging.timers import DueIndex
from streams.model.envelope import ID
from streams.model.layout import LANE, partition_of
from streams.saga.messages import Reply
from streams.saga.transition import begin, receive
from streams.testing.log import FakeRecord
from streams.testing.store import MemoryStores

pytestmark = pytest.mark.slow("two seconds of sagas")

PARTITIONS = 4
NOW = 1_700_000_000.0


def ground(tmp_path: Path, workload: Any) -> GrowthGround:
    return GrowthGround("nowhere:1", tmp_path, "sagas-test", partitions=PARTITIONS, workload=workload)


def test_preloaded_timers_are_found_when_due(tmp_path: Path) -> None:
    made = ground(tmp_path, TIMERS)
    store, writes = MemoryStores().open(0), Writes(60.0)
    for partition, key, value, _ in waiting_timers(made, 50, NOW):
        store.apply(writes.of(LANE, partition, [(key, value)]), {})
    assert list(DueIndex().due(store, NOW - 1, lambda _: False)) == []
    due = [timer for timer, _ in DueIndex().due(store, NOW + 1, lambda _: False) if timer is not None]
    assert {timer.outgoing.key for timer in due} == {b"w%d" % i for i in range(50)}
    assert all(timer.topic == rang_topic(made.name) for timer in due)
    assert all(timer.partition == partition_of(timer.outgoing.key or b"", PARTITIONS) for timer in due)


def test_each_message_about_a_timer_is_handled_as_it_asks(tmp_path: Path) -> None:
    made = ground(tmp_path, TIMERS)
    route = made.app.routes[made.topic]
    (handler,) = route.handlers
    outcomes = []
    for ask in ("set", "cancel", "neither"):
        ((_, _, value, headers),) = timer_messages(made, [7], ask, NOW)
        outcomes.append(handler.call(route.codec.decode(value, None)))
        assert dict(headers)[ID] == f"k7-{ask}".encode()
    assert [(len(each.timers), list(each.cancel)) for each in outcomes] == [(1, []), (0, ["t"]), (0, [])]
    assert outcomes[0].timers[0].due == NOW


def test_sagas_in_flight_end_or_are_undone_after_timeouts(tmp_path: Path) -> None:
    made = ground(tmp_path, FLIGHT)
    codecs = made.app.message_codecs

    def reply_to(step: str, attempt: int) -> Reply:
        ((partition, key, value, _),) = replies(made, [3], step, attempt=attempt)
        assert partition == partition_of(key, PARTITIONS)
        reply: Reply = codecs[OrderSagaReply.TOPIC].decode(value, None)
        return reply

    ((_, key, value, _),) = submitted(made, [3])
    start = begin(OrderSaga, codecs[OrderSubmitted.TOPIC].decode(value, None), NOW)
    assert key == name_of(3).encode()
    on = start
    for step, then in STEPS.items():
        on = receive(OrderSaga, on.row, reply_to(step, 1), NOW)
        assert [type(message) for message in on.send] == [then]
    assert on.row.status == "completed"
    (deadline,) = start.timers
    assert isinstance(deadline.message, Reply)
    back = receive(OrderSaga, start.row, deadline.message, deadline.due)
    assert [type(message) for message in back.send] == [ReleaseStock]
    back = receive(OrderSaga, back.row, reply_to("reserve_inventory", 2), deadline.due)
    assert [type(message) for message in back.send] == [CancelOrder]


async def test_what_a_saga_or_a_timer_sends_again_is_noticed(tmp_path: Path) -> None:
    made, worker = ground(tmp_path, TIMERS), object()
    seen, rung = SeenSagas("nowhere:1", [CapturePayment], worker), Rung(made, worker)  # type: ignore[arg-type]
    commanded = FakeRecord(CapturePayment.TOPIC, 0, 0, 0, name_of(0).encode(), b"", [])
    rings = FakeRecord(rang_topic(made.name), 0, 0, 0, b"k0", b"", [])
    for times in (1, 2):
        seen.take(commanded, 0.0)
        rung.take(rings, 0.0)
        if times == 1:
            await seen.each_once(CapturePayment, range(1))
            await rung.each_once(range(1))
    with pytest.raises(NotMeasured, match="1 sent CapturePayment again"):
        await seen.each_once(CapturePayment, range(1))
    with pytest.raises(NotMeasured, match="1 timers rang more than once"):
        await rung.each_once(range(1))


async def test_what_an_order_writes_is_counted_either_way() -> None:
    choreographed, orchestrated = [await count(case) for case in CASES[:2]]
    assert choreographed.messages["orders.order.confirmed.v1"] == 1
    assert (choreographed.timers, choreographed.saga_bytes) == (0, [])
    # A timer for each step, set and taken away, and a row at the beginning and with each reply: but the last
    # step calls no service, so that it begins and ends in one transaction.
    assert orchestrated.timers == 2 * len(STEPS) - 1
    assert orchestrated.messages["orders.saga.replies"] == len(STEPS)
    assert len(orchestrated.saga_bytes) == len(STEPS)
    assert orchestrated.saga_bytes[-1] < full_row_bytes(orchestrated.saga)
