import pytest
from shop import NOON, does_nothing, no_row, order

from agents.cancellation import CancellationRefused, RequestCancellation, StopShipment
from agents.commands import OrderSagaRepair, OrderSubmitted
from agents.messages import (
    Attachment,
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ShipmentFailed,
    ShipmentScheduled,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from agents.orders import handlers as orders
from tables.orders import HistoryEntry, TrackedOrder
from tables.ways import OrderWay

ORDER = order()
PENDING = TrackedOrder(order=ORDER)
CANCELLED = OrderCancelled(order=ORDER, reason="because")


FILES = (Attachment(name="gift.png", content_type="image/png", data=b"a picture"),)
WITH_FILES = OrderPlaced(order=ORDER, attachments=FILES)
DOCUMENTED = OrderDocumented(order_id=ORDER.order_id, attachments=FILES)


def opened(event, tracked=None, way=no_row):
    return orders.open(event, tracked, way, envelope=NOON)


def happened(event, detail: str = "") -> HistoryEntry:
    return HistoryEntry(type=event.TOPIC, time=NOON.time, detail=detail)


def test_files_go_to_shipping_once_and_not_into_rows() -> None:
    outcome = opened(WITH_FILES)
    assert outcome.send == [DOCUMENTED]
    assert outcome.rows["tracked"].order == ORDER
    assert not opened(WITH_FILES, outcome.rows["tracked"]).send
    assert not opened(OrderPlaced(order=ORDER)).send


def test_an_order_begins_pending() -> None:
    event = OrderPlaced(order=ORDER)
    outcome = opened(event)
    assert outcome.rows == {
        "tracked": TrackedOrder(order=ORDER, history=(happened(event),)),
        "way": {"": OrderWay(way="placed")},
    }


def test_an_order_placed_again_stays_what_it_was() -> None:
    placed = opened(OrderPlaced(order=ORDER)).rows["tracked"]
    other = order(total_cents=99)
    for tracked in (placed, placed.confirmed()):
        assert not opened(OrderPlaced(order=other), tracked).rows


def test_an_order_heard_of_first_elsewhere_is_begun() -> None:
    """Its own message was tried again, while what it led to elsewhere went on."""
    noted = orders.note(StockReserved(order=ORDER), None, envelope=NOON).rows["tracked"]
    assert noted.order == ORDER
    confirmed = orders.confirm(ShipmentScheduled(order=ORDER), noted, envelope=NOON).rows["tracked"]
    for tracked in (noted, confirmed):
        outcome = opened(WITH_FILES, tracked)
        assert outcome.send == [DOCUMENTED]
        assert outcome.rows["tracked"].status == tracked.status
        assert outcome.rows["tracked"].history == (*tracked.history, happened(WITH_FILES))
        assert not opened(WITH_FILES, outcome.rows["tracked"]).send


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        (StockReserved(order=ORDER), ""),
        (PaymentCaptured(order=ORDER, cents=1250), "1250 cents"),
        (StockReleased(order=ORDER), ""),
        (PaymentRefunded(order=ORDER, cents=1250), "1250 cents"),
    ],
)
def test_the_history_tells_what_happened_once(event, detail: str) -> None:
    outcome = orders.note(event, PENDING, envelope=NOON)
    assert outcome.rows["tracked"].history == (happened(event, detail),)
    assert outcome.rows["tracked"].status == "pending"
    assert orders.note(event, outcome.rows["tracked"], envelope=NOON).rows == outcome.rows


def test_the_history_goes_on_after_the_order_is_settled() -> None:
    cancelled = PENDING.cancelled("card_declined")
    noted = orders.note(StockReleased(order=ORDER), cancelled, envelope=NOON).rows["tracked"]
    assert noted.status == "cancelled"
    assert len(noted.history) == 1


@pytest.mark.parametrize(
    ("settle", "event", "sent", "status"),
    [
        (orders.confirm, ShipmentScheduled(order=ORDER), OrderConfirmed(order=ORDER), "confirmed"),
        *(
            (orders.cancel, kind(order=ORDER, reason="because"), CANCELLED, "cancelled")
            for kind in (StockReservationFailed, PaymentFailed, ShipmentFailed)
        ),
    ],
)
def test_an_end_settles_the_order_for_its_reason(settle, event, sent, status) -> None:
    outcome = settle(event, PENDING, envelope=NOON)
    assert outcome.send == [sent]
    tracked, reason = outcome.rows["tracked"], getattr(event, "reason", "")
    assert (tracked.status, tracked.reason) == (status, reason)
    assert tracked.history == (happened(event, reason),)


@pytest.mark.parametrize("settled", [PENDING.confirmed(), PENDING.cancelled("because")])
def test_a_settled_order_is_not_settled_again(settled: TrackedOrder) -> None:
    assert does_nothing(orders.confirm(ShipmentScheduled(order=ORDER), settled, envelope=NOON))


def test_a_cancelled_order_notes_its_own_failure() -> None:
    settled = PENDING.cancelled("because")
    event = PaymentFailed(order=ORDER, reason="other")
    outcome = orders.cancel(event, settled, envelope=NOON)
    assert not outcome.send
    tracked = outcome.rows["tracked"]
    assert (tracked.status, tracked.reason) == ("cancelled", "because")
    assert tracked.history == (happened(event, "other"),)
    assert does_nothing(orders.cancel(event, tracked, envelope=NOON))
    assert not orders.cancel(event, PENDING.confirmed(), envelope=NOON).rows


CALL_OFF = RequestCancellation(order_id=ORDER.order_id)


def asks_saga(messages) -> bool:
    return [type(each) for each in messages] == [OrderSagaRepair] and messages[0].operation == "cancel"


def test_calling_off_reaches_whoever_sees_to_the_order() -> None:
    placed = orders.call_off(CALL_OFF, PENDING, OrderWay(way="placed"))
    assert placed.send == [StopShipment(order=ORDER)]
    assert placed.rows == {"way": OrderWay(way="placed", cancelled=True)}
    submitted = orders.call_off(CALL_OFF, PENDING, OrderWay(way="submitted"))
    assert asks_saga(submitted.send)
    assert submitted.rows == {"way": OrderWay(way="submitted", cancelled=True)}


def test_without_a_way_the_history_decides_who_hears() -> None:
    begun = PENDING.noted(happened(OrderSubmitted(order=ORDER)))
    assert asks_saga(orders.call_off(CALL_OFF, begun, None).send)
    assert orders.call_off(CALL_OFF, PENDING, None).send == [StopShipment(order=ORDER)]


def test_calling_off_a_settled_order_changes_nothing() -> None:
    for settled, sent in (
        (PENDING.confirmed(), [CancellationRefused(order=ORDER)]),
        (PENDING.cancelled("x"), []),
    ):
        outcome = orders.call_off(CALL_OFF, settled, OrderWay(way="placed"))
        assert (outcome.rows, outcome.send) == ({}, sent)


@pytest.mark.parametrize("kind", [OrderPlaced, OrderSubmitted])
def test_an_order_called_off_early_is_cancelled_on_arrival(kind) -> None:
    mark = orders.call_off(CALL_OFF, None, None)
    assert (mark.rows, mark.send) == ({"way": OrderWay(cancelled=True)}, ())
    assert orders.call_off(CALL_OFF, None, mark.rows["way"]).rows == mark.rows
    came = opened(kind(order=ORDER), None, {"": mark.rows["way"]}.get)
    assert came.send == [OrderCancelled(order=ORDER, reason="cancelled")]
    assert (came.rows["tracked"].status, came.rows["tracked"].reason) == ("cancelled", "cancelled")
    assert came.rows["way"][""].way != "none"


def test_an_early_call_off_waits_for_the_order() -> None:
    """Its own message waits, the cancellation does not: the order is not known yet."""
    for kind, way in ((OrderPlaced, "placed"), (OrderSubmitted, "submitted")):
        mark = orders.call_off(CALL_OFF, None, OrderWay(way=way)).rows["way"]
        came = opened(kind(order=ORDER), None, {"": mark}.get)
        assert came.rows["tracked"].status == "pending"
        assert came.send == [StopShipment(order=ORDER)] if way == "placed" else asks_saga(came.send)
        late = opened(kind(order=ORDER), PENDING.confirmed(), {"": mark}.get)
        assert late.send == [CancellationRefused(order=ORDER)]


def test_an_order_that_goes_another_way_is_not_opened() -> None:
    way = {"": OrderWay(way="submitted")}.get
    outcome = opened(OrderPlaced(order=ORDER), None, way)
    assert does_nothing(outcome)
    assert "submitted" in outcome.note
