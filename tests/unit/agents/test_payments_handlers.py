import pytest
from shop import BrokenGateway, FakeGateway, NoGateway, does_nothing, no_row, order

from agents.gateway.cards import DECLINED
from agents.gateway.testing import FakeGateway as SandboxGateway
from agents.messages import (
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ShipmentFailed,
    StockReservationFailed,
    StockReserved,
)
from agents.payments import handlers as payments
from tables.payments import Payment
from tables.ways import OrderWay

ORDER = order("o-1", total_cents=1250)
FREE = order("o-1", total_cents=0)
RESERVED, FAILED = StockReserved(order=ORDER), ShipmentFailed(order=ORDER, reason="x")
CAPTURED = Payment(status="captured", cents=1250, charge_id="ch-capture:o-1")


@pytest.mark.parametrize("event", [OrderPlaced(order=ORDER), RESERVED])
async def test_an_order_is_charged_under_its_own_name(event) -> None:
    gateway = FakeGateway()
    outcome = await payments.capture(event, None, no_row, gateway=gateway)
    assert list(gateway.done) == ["capture:o-1"]
    assert outcome.rows["payment"] == CAPTURED
    assert outcome.send == [PaymentCaptured(order=ORDER, cents=1250)]


@pytest.mark.promise("one-charge")
async def test_a_rerun_charges_once_and_decides_the_same() -> None:
    gateway = FakeGateway()
    first = await payments.capture(RESERVED, None, no_row, gateway=gateway)
    assert first == await payments.capture(RESERVED, None, no_row, gateway=gateway)
    assert gateway.total("captured") == 1250


async def test_a_free_order_is_paid_without_the_gateway() -> None:
    outcome = await payments.capture(StockReserved(order=FREE), None, no_row, gateway=NoGateway())
    assert outcome.rows["payment"] == Payment(status="captured")
    assert outcome.send == [PaymentCaptured(order=FREE, cents=0)]


async def test_a_declined_card_is_an_event() -> None:
    declined = order("o-1", card=DECLINED)
    outcome = await payments.capture(StockReserved(order=declined), None, no_row, gateway=FakeGateway())
    failed = Payment(status="failed", charge_id="ch-capture:o-1", reason="card_declined")
    assert outcome.rows["payment"] == failed
    assert outcome.send == [PaymentFailed(order=declined, reason="card_declined")]


@pytest.mark.promise("malformed-charge")
@pytest.mark.parametrize("odd", [{"card": "4111 1111 1111 1111"}, {"total_cents": 10**12 + 1}])
async def test_a_charge_that_the_gateway_calls_malformed_is_an_event(odd) -> None:
    malformed = order("o-1", **odd)
    outcome = await payments.capture(StockReserved(order=malformed), None, no_row, gateway=SandboxGateway())
    assert outcome.rows["payment"] == Payment(status="failed", reason="invalid_charge")
    assert outcome.send == [PaymentFailed(order=malformed, reason="invalid_charge")]


async def test_an_outage_is_an_exception() -> None:
    with pytest.raises(ConnectionError):
        await payments.capture(RESERVED, None, no_row, gateway=BrokenGateway())
    with pytest.raises(ConnectionError):
        await payments.refund(FAILED, CAPTURED, gateway=BrokenGateway())


@pytest.mark.parametrize("status", ["captured", "failed", "refunded", "cancelled"])
async def test_an_order_that_payments_knows_is_not_charged_again(status) -> None:
    outcome = await payments.capture(RESERVED, Payment(status=status), no_row, gateway=NoGateway())
    assert does_nothing(outcome)
    assert status in outcome.note


@pytest.mark.parametrize("kind", [StockReservationFailed, ShipmentFailed])
async def test_what_was_captured_is_given_back_under_its_own_name(kind) -> None:
    gateway = FakeGateway()
    captured = await payments.capture(OrderPlaced(order=ORDER), None, no_row, gateway=gateway)
    outcome = await payments.refund(kind(order=ORDER, reason="x"), captured.rows["payment"], gateway=gateway)
    assert list(gateway.done) == ["capture:o-1", "refund:o-1"]
    assert gateway.total("refunded") == 1250
    assert outcome.rows["payment"].status == "refunded"
    assert outcome.send == [PaymentRefunded(order=ORDER, cents=1250)]


async def test_refunding_nothing_does_not_ask_the_gateway() -> None:
    outcome = await payments.refund(
        ShipmentFailed(order=FREE, reason="x"), Payment(status="captured"), gateway=NoGateway()
    )
    assert outcome.rows == {"payment": Payment(status="refunded")}
    assert outcome.send == [PaymentRefunded(order=FREE, cents=0)]


@pytest.mark.parametrize("status", ["failed", "refunded", "cancelled"])
async def test_what_was_not_captured_is_not_given_back(status) -> None:
    outcome = await payments.refund(FAILED, Payment(status=status, cents=1250), gateway=NoGateway())
    assert does_nothing(outcome)


async def test_a_capture_that_its_refund_has_overtaken_does_nothing() -> None:
    gateway = FakeGateway()
    early = await payments.refund(FAILED, None, gateway=gateway)
    assert early.send == [PaymentRefunded(order=ORDER, cents=0)]
    assert gateway.total("captured") == 0
    late = await payments.capture(RESERVED, early.rows["payment"], no_row, gateway=NoGateway())
    assert does_nothing(late)


async def test_a_refund_gives_back_a_charge_whose_answer_was_lost() -> None:
    gateway = FakeGateway()
    await payments.capture(OrderPlaced(order=ORDER), None, no_row, gateway=gateway)  # nothing was committed
    early = await payments.refund(FAILED, None, gateway=gateway)
    assert early.rows["payment"] == Payment(status="refunded", cents=1250, charge_id="ch-capture:o-1")
    assert early.send == [PaymentRefunded(order=ORDER, cents=1250)]
    assert gateway.total("captured") == gateway.total("refunded") == 1250


async def test_an_early_refund_of_a_free_order_asks_nobody() -> None:
    early = await payments.refund(ShipmentFailed(order=FREE, reason="x"), None, gateway=NoGateway())
    assert early.rows["payment"].status == "cancelled"


async def test_only_the_first_step_asks_for_the_way() -> None:
    submitted = {"": OrderWay(way="submitted")}.get
    outcome = await payments.capture(OrderPlaced(order=ORDER), None, submitted, gateway=NoGateway())
    assert does_nothing(outcome)
    assert "submitted" in outcome.note
    called_off = {"": OrderWay(way="placed", cancelled=True)}.get
    outcome = await payments.capture(OrderPlaced(order=ORDER), None, called_off, gateway=NoGateway())
    assert does_nothing(outcome)
    later = await payments.capture(RESERVED, None, called_off, gateway=FakeGateway())
    assert later.send == [PaymentCaptured(order=ORDER, cents=1250)]
