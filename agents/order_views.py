"""Choreographed orders as sagas: the events that orders has had of each, and what is still to come."""

from __future__ import annotations

from collections.abc import Mapping

from agents.commands import CancelOrder
from agents.messages import (
    OrderCancelled,
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
from streams import Message
from streams.model.envelope import epoch_seconds
from streams.saga import ChoreographedSaga, Course, SagaView, Seen, choreographed
from tables.orders import ORDERS, TrackedOrder

#: As `stock_first` goes. What is short is given back by inventory itself, if there was anything. Orders keeps
#: an `OrderCancelled` of what no service takes alone, and a `CancelOrder` of what was called off before its
#: saga began.
STOCK_FIRST = Course(
    steps=(OrderPlaced, StockReserved, PaymentCaptured, ShipmentScheduled),
    failures={
        StockReservationFailed: (),
        PaymentFailed: (StockReleased,),
        ShipmentFailed: (PaymentRefunded, StockReleased),
        OrderCancelled: (),
        CancelOrder: (),
    },
)

#: As `payment_first` goes.
PAYMENT_FIRST = Course(
    steps=(OrderPlaced, PaymentCaptured, StockReserved, ShipmentScheduled),
    failures={
        PaymentFailed: (),
        StockReservationFailed: (PaymentRefunded,),
        ShipmentFailed: (StockReleased, PaymentRefunded),
        OrderCancelled: (),
        CancelOrder: (),
    },
)


#: An order that is called off may also fail by itself. Who has failed has nothing to give back then, or says
#: nothing of it.
_KEPT_NOTHING: Mapping[str, type[Message]] = {
    StockReservationFailed.TOPIC: StockReleased,
    PaymentFailed.TOPIC: PaymentRefunded,
}


def orders_as_sagas(course: Course) -> ChoreographedSaga:
    """The orders of a choreography, to be listed beside those that a saga conducts."""

    def view(saga_id: str, tracked: TrackedOrder) -> SagaView | None:
        seen: list[Seen] = []
        for entry in tracked.history:
            time = epoch_seconds(entry.time) or (seen[-1].time if seen else 0.0)  # a client may say anything
            seen.append(Seen(entry.type, time, entry.detail))
        called_off = any(each.topic == ShipmentFailed.TOPIC for each in seen)
        without = [_KEPT_NOTHING[each.topic] for each in seen if called_off and each.topic in _KEPT_NOTHING]
        return choreographed(saga_id, course, seen, without) if seen else None

    return ChoreographedSaga("order", ORDERS, view)
