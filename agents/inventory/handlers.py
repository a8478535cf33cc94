"""The handlers of inventory. Orders are keyed by their id and stock by SKU, so an order is split into a
command for each SKU, and the stock's answers are gathered again by order.
"""

from __future__ import annotations

from agents.commands import ConfirmOrder
from agents.inventory.model import answer, commands, failed, given_back, line_commands, released, reserved
from agents.message_bases import LineEvent
from agents.messages import (
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
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
from streams import Outcome, Rows, Service, nothing, outcome
from tables.reservations import (
    RESERVATION_LINES,
    RESERVATION_TALLIES,
    RESERVATIONS,
    Reservation,
    ReservationLine,
    Tally,
)
from tables.stock import STOCK, STOCK_RESERVATIONS, Hold, StockContradiction, StockLevel
from tables.ways import NO_ENTRY, ORDER_WAYS, OrderWay, enter

service = Service("inventory")
HOLD = STOCK_RESERVATIONS.by(lambda command: command.order_id)


# Keyed by order


@service.handler(
    sends=[ReserveLine, HandleLines],
    tally=RESERVATION_TALLIES,
    reservation=RESERVATIONS.any,
    way=ORDER_WAYS.any,
)
def split_order(
    event: OrderPlaced | PaymentCaptured,
    tally: Tally | None,
    reservation: Rows[Reservation],
    way: Rows[OrderWay],
) -> Outcome:
    """Ask for the order's stock, SKU by SKU."""
    del reservation  # it is written only
    if tally is not None:
        return nothing("its stock was requested before")
    if reason := event.order.refusal():
        return nothing(f"orders cancels it: {reason}")
    entry = enter(way, "placed") if isinstance(event, OrderPlaced) else NO_ENTRY
    if entry.refusal:
        return nothing(entry.refusal)
    return outcome(
        tally=Tally.of(len(event.order.skus())),
        reservation={"": Reservation(order=event.order)},
        way=entry.rows,
        send=commands("reserve", event.order),
    )


@service.handler(sends=[ReserveLine, ReleaseLine, ShipLine], had=RESERVATION_LINES.any)
def handle_lines(command: HandleLines, had: Rows[ReservationLine]) -> Outcome:
    """Go on with some SKUs of a wide order."""
    return outcome(send=[*line_commands(command.action, command.order_id, command.lines, had)])


@service.handler(
    sends=[StockReserved, StockReservationFailed, ReservationSettled, ReleaseLine, HandleLines],
    tally=RESERVATION_TALLIES,
    had=RESERVATION_LINES.any,
    reservation=RESERVATIONS.any,
)
def gather(
    line: LineReserved | LineRefused,
    tally: Tally | None,
    had: Rows[ReservationLine],
    reservation: Rows[Reservation],
) -> Outcome:
    """Collect the stock's answers. The last one decides: the order has all of its stock, or gives it back."""
    if tally is None or tally.status != "asked" or had(line.sku) is not None:
        return nothing(f"no answer is awaited for {line.sku}")
    answer = ReservationLine(status="reserved" if isinstance(line, LineReserved) else "refused")
    tally = tally.answered(answer.status)
    answers = {line.sku: answer}
    if tally.awaited:
        return outcome(tally=tally, had=answers)
    whole = known(reservation, line)
    if not tally.refused:
        return outcome(tally=tally.now("reserved"), had=answers, send=[reserved(whole)])
    return outcome(
        tally=tally.giving_back("refused"),
        had=answers,
        send=[failed(whole), *commands("release", whole.order, lambda sku: answers.get(sku) or had(sku))],
    )


@service.handler(
    sends=[ReleaseLine, HandleLines],
    tally=RESERVATION_TALLIES,
    had=RESERVATION_LINES.any,
    reservation=RESERVATIONS.any,
)
def release(
    event: PaymentFailed | ShipmentFailed,
    tally: Tally | None,
    had: Rows[ReservationLine],
    reservation: Rows[Reservation],
) -> Outcome:
    """Release the order's stock, and any of it that is requested or will be."""
    if tally is not None and not tally.may_give_back:
        return nothing(f"there is nothing to give back: {tally.status}")
    tally, releases = given_back(event.order, tally, had)
    whole = reservation("") or Reservation(order=event.order)
    return outcome(tally=tally, reservation={"": whole}, send=releases)


@service.handler(
    sends=[StockReleased, ReservationSettled],
    tally=RESERVATION_TALLIES,
    had=RESERVATION_LINES.by(lambda line: line.sku),
    reservation=RESERVATIONS.any,
)
def gather_released(
    line: LineReleased, tally: Tally | None, had: ReservationLine | None, reservation: Rows[Reservation]
) -> Outcome:
    """Collect what was given back; with the last of it, all of the order's stock is free."""
    given_up = had is not None and had.status in ("refused", "released")
    if tally is None or tally.status not in ("refused", "releasing") or given_up:
        return nothing(f"{line.sku} was not being released")
    line_row = ReservationLine(status="released")
    tally = tally.answered("released")
    if tally.awaited:
        return outcome(tally=tally, had=line_row)
    return outcome(tally=tally.now("released"), had=line_row, send=[released(known(reservation, line))])


@service.handler(sends=[ShipLine, HandleLines], tally=RESERVATION_TALLIES)
def ship(event: ShipmentScheduled | ConfirmOrder, tally: Tally | None) -> Outcome:
    """Let the order's stock go: it leaves with the shipment."""
    if tally is None or tally.status != "reserved":
        return nothing("it has no stock left to ship")
    return outcome(tally=tally.now("shipped"), send=commands("ship", event.order))


def known(reservation: Rows[Reservation], line: LineEvent) -> Reservation:
    """The reservation that a line belongs to. Raises StockContradiction."""
    whole = reservation("")
    if whole is None:
        raise StockContradiction(f"{line.sku} is counted for order {line.order_id}, which has no reservation")
    return whole


# Keyed by SKU


@service.handler(stock=STOCK)
def receive(event: StockReceived, stock: StockLevel | None) -> Outcome:
    """Put new pieces on the shelf."""
    return outcome(stock=(stock or StockLevel()).receive(event.units))


@service.handler(sends=[LineReserved, LineRefused], stock=STOCK, hold=HOLD)
def reserve_line(command: ReserveLine, stock: StockLevel | None, hold: Hold | None) -> Outcome:
    """Set the pieces aside, all or none. A repeated command gets the same answer."""
    if hold is not None:
        return outcome(send=[answer(command, hold)], note=f"already {hold.status}")
    if stock is None or stock.on_hand < command.units:
        hold = Hold(units=command.units, status="refused")
        return outcome(hold=hold, send=[answer(command, hold)])
    hold = Hold(units=command.units, status="reserved")
    return outcome(stock=stock.reserve(command.units), hold=hold, send=[answer(command, hold)])


@service.handler(sends=[LineReleased], stock=STOCK, hold=HOLD)
def release_line(command: ReleaseLine, stock: StockLevel | None, hold: Hold | None) -> Outcome:
    """Release the pieces. A release that comes first leaves a mark, by which the reservation is refused."""
    answer = LineReleased.to(command)
    match hold:
        case None | Hold(status="refused"):
            return outcome(hold=Hold(units=command.units, status="released"), send=[answer])
        case Hold(status="reserved"):
            stock = (stock or StockLevel()).release(hold.units)
            return outcome(stock=stock, hold=hold.now("released"), send=[answer])
        case Hold(status="released"):
            return outcome(send=[answer], note="already released")
    raise StockContradiction(
        f"{command.sku} of order {command.order_id} cannot be released: it is {hold.status}"
    )


@service.handler(stock=STOCK, hold=HOLD)
def ship_line(command: ShipLine, stock: StockLevel | None, hold: Hold | None) -> Outcome:
    """Let the reserved pieces leave."""
    match hold:
        case Hold(status="reserved"):
            return outcome(stock=(stock or StockLevel()).ship(hold.units), hold=hold.now("shipped"))
        case Hold(status="shipped"):
            return nothing("already shipped")
    status = hold.status if hold else "not reserved"
    raise StockContradiction(f"{command.sku} of order {command.order_id} cannot ship: it is {status}")
