"""Choreographed orders as sagas: what orders has heard of each, and what is still to come."""

from __future__ import annotations

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
from streams.model.envelope import epoch_seconds
from streams.saga import ChoreographedSaga, Course, SagaView, Seen, choreographed
from tables.orders import ORDERS, TrackedOrder

#: As `stock_first` goes. What is short is given back by inventory itself, if there was anything. Orders keeps
#: an `OrderCancelled` of what no service takes alone.
STOCK_FIRST = Course(
    steps=(OrderPlaced, StockReserved, PaymentCaptured, ShipmentScheduled),
    failures={
        StockReservationFailed: (),
        PaymentFailed: (StockReleased,),
        ShipmentFailed: (PaymentRefunded, StockReleased),
        OrderCancelled: (),
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
    },
)


def orders_as_sagas(course: Course) -> ChoreographedSaga:
    """The orders of a choreography, to be listed beside those that a saga conducts."""

    def view(saga_id: str, tracked: TrackedOrder) -> SagaView | None:
        seen: list[Seen] = []
        for entry in tracked.history:
            time = epoch_seconds(entry.time) or (seen[-1].time if seen else 0.0)  # a client may say anything
            seen.append(Seen(entry.type, time, entry.detail))
        return choreographed(saga_id, course, seen) if seen else None

    return ChoreographedSaga("order", ORDERS, view)
