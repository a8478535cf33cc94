import pytest
from shop import does_nothing, order

from agents.cancellation import CancellationRefused, StopShipment
from agents.messages import (
    Attachment,
    DocumentsPacked,
    OrderDocumented,
    PaymentCaptured,
    ShipmentFailed,
    ShipmentScheduled,
    StockReserved,
)
from agents.shipping import handlers as shipping
from agents.shipping.model import DESTINATIONS
from tables.shipments import Shipment

HOME = order(country="US")
FAR = order(country="AQ")


@pytest.mark.parametrize("event", [PaymentCaptured(order=HOME, cents=1250), StockReserved(order=HOME)])
def test_an_order_to_a_country_we_ship_to_is_scheduled(event) -> None:
    outcome = shipping.schedule(event, None)
    assert outcome.rows == {"shipment": Shipment(status="scheduled", country="US")}
    assert outcome.send == [ShipmentScheduled(order=HOME)]


def test_an_order_to_anywhere_else_is_refused() -> None:
    outcome = shipping.schedule(PaymentCaptured(order=FAR, cents=1250), None)
    assert outcome.rows == {
        "shipment": Shipment(status="refused", country="AQ", reason="unsupported_destination")
    }
    assert outcome.send == [ShipmentFailed(order=FAR, reason="unsupported_destination")]


@pytest.mark.parametrize("status", ["scheduled", "refused"])
def test_an_order_is_decided_on_once(status) -> None:
    outcome = shipping.schedule(StockReserved(order=HOME), Shipment(status=status, country="US"))
    assert does_nothing(outcome)


def test_an_order_called_off_before_scheduling_does_not_leave() -> None:
    outcome = shipping.stop(StopShipment(order=HOME), None)
    assert outcome.rows == {"shipment": Shipment(status="refused", country="US", reason="cancelled")}
    assert outcome.send == [ShipmentFailed(order=HOME, reason="cancelled")]
    stopped = outcome.rows["shipment"]
    assert shipping.schedule(StockReserved(order=HOME), stopped).send == ()
    assert shipping.stop(StopShipment(order=HOME), stopped).send == ()


def test_a_scheduled_order_leaves_and_says_so() -> None:
    outcome = shipping.stop(StopShipment(order=HOME), Shipment(status="scheduled", country="US"))
    assert outcome.rows == {}
    assert outcome.send == [CancellationRefused(order=HOME, status="confirmed")]


def test_what_comes_with_an_order_goes_into_its_parcel() -> None:
    files = (Attachment(name="gift.png", content_type="image/png", data=b"a picture"),)
    outcome = shipping.pack(OrderDocumented(order_id="o-1", attachments=files))
    assert outcome.send == [DocumentsPacked(order_id="o-1", attachments=files)]


def test_destinations_are_two_capitals() -> None:
    assert all(len(code) == 2 and code.isupper() for code in DESTINATIONS)
