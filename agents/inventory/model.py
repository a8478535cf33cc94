"""The messages of inventory: its commands for the lines of an order, the stock's answer to them, and the
result of an order's reservation, as an event or as the reply to a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agents.message_bases import LineCommand, OrderEvent
from agents.messages import (
    HandleLines,
    LineRefused,
    LineReserved,
    LinesAction,
    Order,
    ReleaseLine,
    ReservationSettled,
    ReserveLine,
    ShipLine,
    SkuUnits,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from streams import Message, Rows
from tables.reservations import Reservation, ReservationLine, Tally
from tables.stock import Hold

OUT_OF_STOCK = "out_of_stock"
RELEASED = "released"

#: SKUs that one turn of a handler goes on with. Of an order that has more it tells itself, a part at a time:
#: other messages have their turns between, and no transaction has all of it.
AT_ONCE = 500

_COMMANDS: Mapping[LinesAction, type[LineCommand]] = {
    "reserve": ReserveLine,
    "release": ReleaseLine,
    "ship": ShipLine,
}


def no_answers(sku: str) -> ReservationLine | None:
    """Of an order for which the stock has not answered yet, or not in a way that matters."""
    del sku
    return None


def commands(action: LinesAction, order: Order, had: Rows[ReservationLine] = no_answers) -> list[Message]:
    """One command for each SKU of an order that the action concerns: what was refused is not released. `had`
    is what the stock has answered.
    """
    skus = order.skus()
    if len(skus) <= AT_ONCE:
        return [*line_commands(action, order.order_id, skus, had)]
    parts = (skus[start : start + AT_ONCE] for start in range(0, len(skus), AT_ONCE))
    return [HandleLines(order_id=order.order_id, action=action, lines=part) for part in parts]


def line_commands(
    action: LinesAction, order_id: str, skus: Iterable[SkuUnits], had: Rows[ReservationLine]
) -> Iterator[Message]:
    """The same for some of its SKUs, at once."""
    kind = _COMMANDS[action]
    for each in skus:
        if action == "release" and (line := had(each.sku)) is not None and line.status == "refused":
            continue
        yield kind(order_id=order_id, sku=each.sku, units=each.units)


def given_back(order: Order, tally: Tally | None, had: Rows[ReservationLine]) -> tuple[Tally, list[Message]]:
    """The tally and the commands of an order that releases its stock, and any of it that is requested or
    will be.
    """
    tally = tally or Tally.of(len(order.skus()))
    return tally.giving_back("releasing"), commands("release", order, had)


def answer(command: ReserveLine, hold: Hold) -> LineReserved | LineRefused:
    """The stock's answer to an order's command, the same for each repetition."""
    match hold.status:
        case "reserved" | "shipped":
            return LineReserved.to(command)
        case "refused":
            return LineRefused.to(command, reason=OUT_OF_STOCK)
        case "released":
            return LineRefused.to(command, reason=RELEASED)


def reserved(reservation: Reservation) -> OrderEvent:
    """All of the order's stock is set aside."""
    if reservation.commanded:
        return ReservationSettled(order=reservation.order, status="reserved")
    return StockReserved(order=reservation.order)


def failed(reservation: Reservation) -> OrderEvent:
    """Something of it is out of stock."""
    if reservation.commanded:
        return ReservationSettled(order=reservation.order, status="refused", reason=OUT_OF_STOCK)
    return StockReservationFailed(order=reservation.order, reason=OUT_OF_STOCK)


def released(reservation: Reservation) -> OrderEvent:
    """All that was set aside is free again."""
    if reservation.commanded:
        return ReservationSettled(order=reservation.order, status="released")
    return StockReleased(order=reservation.order)
