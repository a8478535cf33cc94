"""What each message calls for: written down from what they mean, stock first and by saga."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.cancellation import CancellationRefused, RequestCancellation, StopShipment
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
from agents.messages import (
    DocumentsPacked,
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReservationSettled,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)

if TYPE_CHECKING:
    from streams.model.message import Message


@dataclass(frozen=True)
class Calls:
    """What a message calls for: one of each tuple, and one of each type for every SKU of its order."""

    one_of: tuple[tuple[type[Message], ...], ...] = ()
    for_each_sku: tuple[type[Message], ...] = ()


NOTHING = Calls()
ANSWER = Calls(one_of=((OrderSagaReply,),))
#: What a saga says next.
NEXT = Calls(
    one_of=(
        (
            ReserveStock,
            CapturePayment,
            ScheduleShipment,
            ConfirmOrder,
            CancelShipment,
            RefundPayment,
            ReleaseStock,
            CancelOrder,
        ),
    )
)
CALLS: Mapping[type[Message], Calls] = {
    OrderPlaced: Calls(for_each_sku=(ReserveLine,)),
    ReserveLine: Calls(one_of=((LineReserved, LineRefused),)),
    StockReserved: Calls(one_of=((PaymentCaptured, PaymentFailed),)),
    PaymentCaptured: Calls(one_of=((ShipmentScheduled, ShipmentFailed),)),
    ShipmentScheduled: Calls(one_of=((OrderConfirmed,),), for_each_sku=(ShipLine,)),
    StockReservationFailed: Calls(one_of=((OrderCancelled,),)),
    PaymentFailed: Calls(one_of=((OrderCancelled,),), for_each_sku=(ReleaseLine,)),
    ShipmentFailed: Calls(one_of=((OrderCancelled,), (PaymentRefunded,)), for_each_sku=(ReleaseLine,)),
    HandleLines: NOTHING,  # what it leads to is counted for whatever led to it
    ReleaseLine: Calls(one_of=((LineReleased,),)),
    OrderDocumented: Calls(one_of=((DocumentsPacked,),)),
    DocumentsPacked: NOTHING,
    ShipLine: NOTHING,
    StockReceived: NOTHING,
    PaymentRefunded: NOTHING,
    StockReleased: NOTHING,
    OrderConfirmed: NOTHING,
    OrderCancelled: NOTHING,
    OrderSubmitted: Calls(one_of=((ReserveStock,),)),
    ReserveStock: Calls(for_each_sku=(ReserveLine,)),
    ReleaseStock: ANSWER,
    ReservationSettled: ANSWER,
    CapturePayment: ANSWER,
    RefundPayment: ANSWER,
    ScheduleShipment: ANSWER,
    CancelShipment: ANSWER,
    OrderSagaReply: NEXT,
    ConfirmOrder: Calls(one_of=((OrderConfirmed,),), for_each_sku=(ShipLine,)),
    CancelOrder: Calls(one_of=((OrderCancelled,),)),
    OrderSagaRepair: NOTHING,  # no operator is about in a run, and no client calls an order off
    RequestCancellation: Calls(one_of=((StopShipment, OrderSagaRepair),)),
    StopShipment: Calls(one_of=((ShipmentFailed, CancellationRefused),)),
    CancellationRefused: NOTHING,
}
#: Answers that are gathered by order: whichever is handled last leads on, the others to nothing.
GATHERED: frozenset[type[Message]] = frozenset({LineReserved, LineRefused, LineReleased})
#: What clients write, and may repeat.
OUTSIDE: frozenset[type[Message]] = frozenset(
    {OrderPlaced, OrderSubmitted, OrderSagaRepair, RequestCancellation, StockReceived}
)

MESSAGES: tuple[type[Message], ...] = (*CALLS, *GATHERED)
#: What version 2 of the application handles beside: it is only counted.
NOTES_TOPIC = "chaos.note.made.v1"
OUTSIDE_TOPICS = frozenset({NOTES_TOPIC, *(kind.TOPIC for kind in OUTSIDE)})
NAMES = {kind.TOPIC: kind.__name__ for kind in MESSAGES}
BY_TOPIC = {NOTES_TOPIC: NOTHING, **{kind.TOPIC: calls for kind, calls in CALLS.items()}}
