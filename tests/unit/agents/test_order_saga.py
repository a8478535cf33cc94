"""The order saga, and the services' parts in it."""

from typing import Any

import msgspec
import pytest
from shop import NOON, FakeGateway, NoGateway, no_row, order

from agents import messages
from agents.cancellation import CancellationRefused, RequestCancellation
from agents.choreographies import calling_off, documents, payment_first, stock_first, stock_keeping
from agents.commands import (
    CancelOrder,
    CancelShipment,
    CapturePayment,
    ConfirmOrder,
    OrderSagaRepair,
    OrderSagaReply,
    OrderSubmitted,
    RefundPayment,
    ReleaseStock,
    ReserveStock,
    ScheduleShipment,
)
from agents.gateway.cards import ACCEPTED, DECLINED
from agents.inventory import steps as stock
from agents.order_saga import OrderSaga, orchestrated, order_saga
from agents.orders import handlers as orders
from agents.orders.model import answer
from agents.payments import steps as payments
from agents.shipping import steps as shipping
from streams.model.choreography import choreography
from streams.saga.messages import Command
from streams.saga.participation import Participation
from streams.testing.clock import ManualClock
from streams.testing.sagas import SagaUnderTest, error, given_saga, refused, success
from tables.orders import ORDERS, TrackedOrder
from tables.payments import PAYMENTS, Payment
from tables.reservations import RESERVATIONS, Tally
from tables.shipments import SHIPMENTS, Shipment
from tables.stock import STOCK

ORDER = order("o-1", ("apple", 2), ("pear", 1))
EMPTY = messages.Order(order_id="o-1", customer="c-1", lines=(), total_cents=1, card=ACCEPTED, country="US")
CLOCK = ManualClock(1000.0)


def submitted() -> SagaUnderTest:
    return given_saga(OrderSaga).start(OrderSubmitted(order=ORDER)).expect_command(ReserveStock, order=ORDER)


def called_off() -> Any:
    """What orders tells the saga of an order that a client has called off."""
    (command,) = answer("submitted", TrackedOrder(order=ORDER))
    return command


def paid() -> SagaUnderTest:
    charged = submitted().reply(success).expect_command(CapturePayment).reply(success)
    return charged.expect_command(ScheduleShipment)


def test_an_order_is_reserved_paid_for_shipped_and_confirmed() -> None:
    paid().reply(success).expect_event(ConfirmOrder, order=ORDER).expect_status("completed")


def test_files_are_not_in_the_sagas_row() -> None:
    gift = messages.Attachment(name="gift.png", content_type="image/png", data=b"p" * 2_000_000)
    saga = given_saga(OrderSaga).start(OrderSubmitted(order=ORDER, attachments=(gift,)))
    saga.expect_command(ReserveStock, order=ORDER)
    assert len(msgspec.json.encode(saga.row)) < 3000


def test_a_declined_card_gives_the_stock_back() -> None:
    saga = submitted().reply(success).expect_command(CapturePayment).reply(refused, reason="card_declined")
    saga.expect_compensation(ReleaseStock).reply(success)
    saga.expect_event(CancelOrder, reason="card_declined").expect_status("compensated")


def passes_its_deadline(saga: SagaUnderTest) -> SagaUnderTest:
    return saga.time_passes(31)


def is_called_off(saga: SagaUnderTest) -> SagaUnderTest:
    return saga.hear(called_off())


either = pytest.mark.parametrize(
    ("given_up", "reason"), [(passes_its_deadline, "timed_out"), (is_called_off, "cancelled")]
)


def expect_all_given_back(saga: SagaUnderTest, reason: str) -> None:
    saga.expect_compensation(RefundPayment).reply(success).expect_compensation(ReleaseStock).reply(success)
    saga.expect_event(CancelOrder, reason=reason).expect_status("compensated")


@either
def test_an_unheard_payment_is_given_back_before_the_stock(given_up: Any, reason: str) -> None:
    expect_all_given_back(given_up(submitted().reply(success).expect_command(CapturePayment)), reason)


@either
def test_an_unheard_shipment_is_cancelled_and_all_given_back(given_up: Any, reason: str) -> None:
    saga = given_up(paid()).expect_compensation(CancelShipment)
    saga.reply(success, to=ScheduleShipment)  # too late
    expect_all_given_back(saga.reply(success, to=CancelShipment), reason)


def test_a_failing_refund_waits_for_an_operator() -> None:
    saga = paid().reply(refused).expect_compensation(RefundPayment)
    for tries in range(10):
        saga.reply(error).time_passes(min(5 * 2**tries, 300)).expect_compensation(RefundPayment)
    saga.reply(error).expect_status("failed", process_payment="failed", reserve_inventory="completed")
    saga.mark_done("process_payment", "by bank transfer").expect_compensation(ReleaseStock)


@pytest.mark.promise("cancelled-orders")
def test_an_order_past_its_pivot_stays_and_says_so() -> None:
    saga = paid().reply(success).expect_event(ConfirmOrder).expect_status("completed")
    for _ in range(2):
        saga.hear(called_off()).expect_event(CancellationRefused, order=ORDER, status="confirmed")
        saga.expect_status("completed")


def test_an_order_being_undone_is_not_called_off_again() -> None:
    saga = submitted().hear(called_off()).expect_compensation(ReleaseStock).hear(called_off())
    saga.expect_nothing().reply(success, to=ReleaseStock).expect_event(CancelOrder, reason="cancelled")
    saga.hear(called_off()).expect_status("compensated")


def test_only_orders_deliveries_and_operators_come_from_outside() -> None:
    for way in (stock_first, payment_first):
        wiring = choreography(*way.routes.values(), *orchestrated)
        outside = wiring.routes.keys() - wiring.sent.keys()
        kinds = (messages.OrderPlaced, OrderSubmitted, RequestCancellation, messages.StockReceived)
        assert outside == {kind.TOPIC for kind in kinds}
        outside |= {OrderSagaRepair.TOPIC}  # orders sends it, and so do operators
        assert {topic for topic in wiring.routes if wiring.uses_inbox(topic)} == outside
        needed = {name for handler in wiring.handlers() for name in handler.resources}
        assert needed == {"gateway", "clock", "consumed"}


def test_it_shares_tables_and_what_inventory_does_with_the_choreographies() -> None:
    tables = choreography(*orchestrated, *stock_keeping).tables()
    assert {STOCK.name, RESERVATIONS.name, PAYMENTS.name, SHIPMENTS.name, ORDERS.name} <= tables.keys()
    for wiring in (stock_first, payment_first):
        assert wiring.tables().items() <= tables.items()


def test_nothing_that_a_saga_sends_leads_a_placed_order_on() -> None:
    """Both ways are in the same workers: none of a saga's messages is one that a choreography reacts to, but
    for the stock of a SKU, which answers everybody alike.
    """
    kept = {route.message.TOPIC for route in (*stock_keeping, *documents, *calling_off)}
    for wiring in (stock_first, payment_first):
        for route in orchestrated:
            for handler in route.handlers:
                reactions = {kind.TOPIC for kind in handler.sends} & wiring.routes.keys()
                assert reactions <= kept, handler.name


def ask(kind: type[Command], step: str, *, of: Any = ORDER, attempt: int = 1) -> Any:
    own = {"saga_id": "order:o-1", "step": step, "command_id": "c", "attempt": attempt, "expires": 0.0}
    return kind(**own, order=of)


def reserve(tally: Tally | None = None) -> Any:
    return stock.reserve(ask(ReserveStock, "reserve_inventory"), None, tally, no_row, clock=CLOCK)


def reply_of(outcome: Any) -> OrderSagaReply:
    (reply,) = (each for each in outcome.send if isinstance(each, OrderSagaReply))
    return reply


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (messages.ReservationSettled(order=ORDER, status="reserved"), "success"),
        (messages.ReservationSettled(order=ORDER, status="refused", reason="out_of_stock"), "refused"),
    ],
)
def test_a_reservation_is_answered_when_all_stock_has(event: Any, outcome: str) -> None:
    command = reserve()
    assert [line.sku for line in command.send] == ["apple", "pear"]
    answered = stock.answer(event, command.rows["participation"])
    assert reply_of(answered).outcome == outcome
    assert stock.answer(event, answered.rows["participation"]).send == ()


def test_a_released_reservation_ignores_later_answers() -> None:
    rows = reserve().rows
    command, held = ask(ReleaseStock, "reserve_inventory"), rows["reservation"].get
    released = stock.release(command, rows["participation"], rows["tally"], no_row, held, clock=CLOCK)
    assert [line.sku for line in released.send] == ["apple", "pear"]
    late = messages.ReservationSettled(order=ORDER, status="reserved")
    assert stock.answer(late, released.rows["participation"]).send == ()
    free = messages.ReservationSettled(order=ORDER, status="released")
    assert reply_of(stock.answer(free, released.rows["participation"])).outcome == "success"


def test_stock_is_asked_for_once() -> None:
    refused_before = Tally(status="refused", skus=2, awaited=0, refused=1)
    for reason, tally in {"out_of_stock": refused_before, "asked_before": Tally.of(2)}.items():
        reply = reply_of(reserve(tally))
        assert (reply.outcome, reply.reason) == ("refused", reason)


@pytest.mark.promise("order-limits")
def test_an_impossible_order_is_cancelled_without_a_saga() -> None:
    command = OrderSubmitted(order=EMPTY)
    assert order_saga(command, None, no_row, clock=CLOCK).note == "it starts no saga: no_lines"
    settled = orders.open(command, None, no_row, envelope=NOON)
    assert settled.send == [messages.OrderCancelled(order=EMPTY, reason="no_lines")]


async def capture(of: Any, gateway: Any) -> Any:
    return await payments.capture(
        ask(CapturePayment, "process_payment", of=of), None, None, clock=CLOCK, gateway=gateway
    )


async def refund(participation: Participation | None, payment: Payment | None, gateway: Any) -> Any:
    command = ask(RefundPayment, "process_payment", attempt=2)
    return await payments.refund(command, participation, payment, clock=CLOCK, gateway=gateway)


async def test_a_card_is_charged_under_the_choreographys_name() -> None:
    gateway = FakeGateway()
    charged = await capture(ORDER, gateway)
    assert reply_of(charged).outcome == "success"
    assert list(gateway.done) == ["capture:o-1"]
    payment = Payment(status="captured", cents=ORDER.total_cents, charge_id="ch-capture:o-1")
    assert charged.rows["payment"] == payment


async def test_a_declined_card_is_a_refusal() -> None:
    declined = await capture(order("o-1", card=DECLINED), FakeGateway())
    assert (reply_of(declined).outcome, reply_of(declined).reason) == ("refused", "card_declined")
    assert declined.rows["payment"].status == "failed"


async def test_a_charge_that_nobody_knows_of_is_given_back() -> None:
    gateway = FakeGateway()
    await capture(ORDER, gateway)
    refunded = await refund(None, None, gateway)
    assert list(gateway.done) == ["capture:o-1", "refund:o-1"]
    assert reply_of(refunded).outcome == "success"
    payment = Payment(status="refunded", cents=ORDER.total_cents, charge_id="ch-capture:o-1")
    assert refunded.rows["payment"] == payment


async def test_a_payment_that_is_given_back_keeps_what_was_captured() -> None:
    gateway = FakeGateway()
    charged = await capture(ORDER, gateway)
    refunded = await refund(charged.rows["participation"], charged.rows["payment"], gateway)
    assert charged.rows["payment"].cents == ORDER.total_cents == gateway.total("refunded")
    assert refunded.rows["payment"] == msgspec.structs.replace(charged.rows["payment"], status="refunded")


@pytest.mark.promise("saga-voided-charge")
async def test_what_was_never_charged_stays_uncharged() -> None:
    gateway = FakeGateway()
    cancelled = await refund(None, None, gateway)
    assert list(gateway.done) == ["capture:o-1"]
    on_its_way = await gateway.charge(operation="capture:o-1", cents=ORDER.total_cents, card=ORDER.card)
    assert on_its_way.declined
    assert (reply_of(cancelled).outcome, cancelled.rows["payment"].status) == ("success", "cancelled")


async def test_a_free_payment_is_undone_too() -> None:
    free = msgspec.structs.replace(ORDER, total_cents=0)
    paid = await capture(free, NoGateway())
    command = ask(RefundPayment, "process_payment", of=free, attempt=2)
    for row, payment, status in (
        (paid.rows["participation"], paid.rows["payment"], "refunded"),
        (None, None, "cancelled"),
    ):
        undone = await payments.refund(command, row, payment, clock=CLOCK, gateway=NoGateway())
        assert (reply_of(undone).outcome, undone.rows["payment"].status) == ("success", status)


async def test_a_refused_payment_is_not_asked_about() -> None:
    declined = await capture(order("o-1", card=DECLINED), FakeGateway())
    undone = await refund(declined.rows["participation"], declined.rows["payment"], NoGateway())
    assert reply_of(undone).outcome == "success"


def test_a_shipment_is_scheduled_refused_and_cancelled() -> None:
    scheduled = shipping.schedule(ask(ScheduleShipment, "schedule_shipping"), None, None, clock=CLOCK)
    assert scheduled.rows["shipment"] == Shipment(status="scheduled", country="US")
    far = ask(ScheduleShipment, "schedule_shipping", of=order("o-1", country="AQ"))
    assert reply_of(shipping.schedule(far, None, None, clock=CLOCK)).reason == "unsupported_destination"
    command, rows = ask(CancelShipment, "schedule_shipping"), scheduled.rows
    cancelled = shipping.cancel(command, rows["participation"], rows["shipment"], clock=CLOCK)
    assert cancelled.rows["shipment"] is None
    assert reply_of(cancelled).outcome == "success"


def test_orders_settle_an_order_as_its_saga_ends() -> None:
    opened = orders.open(OrderSubmitted(order=ORDER), None, no_row, envelope=NOON).rows["tracked"]
    assert (opened.status, [entry.type for entry in opened.history]) == ("pending", [OrderSubmitted.TOPIC])
    assert orders.open(OrderSubmitted(order=ORDER), opened, no_row, envelope=NOON).rows == {}
    good = orders.settle(ConfirmOrder(order=ORDER), opened, envelope=NOON)
    assert (good.rows["tracked"].status, len(good.rows["tracked"].history)) == ("confirmed", 2)
    assert good.send == [messages.OrderConfirmed(order=ORDER)]
    bad = orders.settle(CancelOrder(order=ORDER, reason="no"), opened, envelope=NOON)
    assert (bad.rows["tracked"].status, bad.rows["tracked"].reason) == ("cancelled", "no")
    assert bad.send == [messages.OrderCancelled(order=ORDER, reason="no")]


def test_an_order_is_settled_once() -> None:
    opened = orders.open(OrderSubmitted(order=ORDER), None, no_row, envelope=NOON).rows["tracked"]
    settled = orders.settle(ConfirmOrder(order=ORDER), opened, envelope=NOON).rows["tracked"]
    for command in (ConfirmOrder(order=ORDER), CancelOrder(order=ORDER, reason="no")):
        again = orders.settle(command, settled, envelope=NOON)
        assert (again.rows, again.send, again.note) == ({}, (), "already confirmed")
