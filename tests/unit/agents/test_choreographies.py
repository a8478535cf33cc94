import pytest

from agents.cancellation import CancellationRefused, RequestCancellation
from agents.choreographies import payment_first, stock_first
from agents.commands import OrderSagaRepair
from agents.messages import (
    DocumentsPacked,
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    ReservationSettled,
    StockReceived,
)
from streams.model.choreography import Choreography

OUTSIDE = {OrderPlaced.TOPIC, RequestCancellation.TOPIC, StockReceived.TOPIC}
both = pytest.mark.parametrize("wiring", [stock_first, payment_first], ids=["stock_first", "payment_first"])


@both
def test_only_the_end_of_an_order_is_sent_to_nobody(wiring: Choreography) -> None:
    ends = {OrderConfirmed.TOPIC, OrderCancelled.TOPIC, DocumentsPacked.TOPIC}
    told_to_clients = {CancellationRefused.TOPIC}
    told_to_sagas = {ReservationSettled.TOPIC, OrderSagaRepair.TOPIC}
    assert wiring.sent.keys() - wiring.routes.keys() == ends | told_to_clients | told_to_sagas


@pytest.mark.promise("duplicates")
@both
def test_what_comes_from_outside_is_checked_against_the_inbox(wiring: Choreography) -> None:
    assert wiring.routes.keys() - wiring.sent.keys() == OUTSIDE
    assert {topic for topic in wiring.routes if wiring.uses_inbox(topic)} == OUTSIDE


@both
def test_nothing_but_the_payment_gateway_is_needed(wiring: Choreography) -> None:
    assert {name for handler in wiring.handlers() for name in handler.resources} == {"gateway"}


def test_both_orders_use_the_same_handlers_messages_and_tables() -> None:
    assert {h.name for h in stock_first.handlers()} == {h.name for h in payment_first.handlers()}
    assert stock_first.messages() == payment_first.messages()
    assert stock_first.tables() == payment_first.tables()
