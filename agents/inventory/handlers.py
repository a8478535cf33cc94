"""What inventory does. Orders are keyed by their id and stock by SKU, so an order is split into a command for
each SKU, and the stock's answers are gathered again by order.
"""

from __future__ import annotations

from agents.commands import ConfirmOrder
from agents.inventory.model import answer, commands, failed, released, reserved
from agents.messages import (
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
from streams.handlers import Service
from streams.outcome import Outcome, nothing, outcome
from tables.reservations import RESERVATIONS, LineStatus, Reservation
from tables.stock import STOCK, STOCK_RESERVATIONS, Hold, StockContradiction, StockLevel

service = Service("inventory")
HOLD = STOCK_RESERVATIONS.by(lambda command: command.order_id)


# Keyed by order


@service.handler(sends=[ReserveLine, StockReserved], reservation=RESERVATIONS)
def split_order(event: OrderPlaced | PaymentCaptured, reservation: Reservation | None) -> Outcome:
    """Ask for the order's stock, SKU by SKU."""
    if reservation is not None:
        return nothing("its stock was asked for before")
    reservation = Reservation.of(event.order)
    asks = commands(ReserveLine, event.order, reservation.lines)
    return outcome(reservation=reservation, send=asks or [StockReserved(order=event.order)])


@service.handler(
    sends=[StockReserved, StockReservationFailed, ReservationSettled, ReleaseLine], reservation=RESERVATIONS
)
def gather(line: LineReserved | LineRefused, reservation: Reservation | None) -> Outcome:
    """Collect the stock's answers. The last one decides: the order has all of its stock, or gives it back."""
    status: LineStatus = "reserved" if isinstance(line, LineReserved) else "refused"
    gathered = reservation and reservation.answered(line.sku, status, waiting="asked")
    if gathered is None:
        return nothing(f"no answer is awaited for {line.sku}")
    if gathered.lines_in("asked"):
        return outcome(reservation=gathered)
    if not gathered.lines_in("refused"):
        return outcome(reservation=gathered, send=[reserved(gathered)])
    had = gathered.lines_in("reserved")
    return outcome(
        reservation=gathered.moved(had, "releasing"),
        send=[failed(gathered), *commands(ReleaseLine, gathered.order, had)],
    )


@service.handler(sends=[ReleaseLine], reservation=RESERVATIONS)
def release(event: PaymentFailed | ShipmentFailed, reservation: Reservation | None) -> Outcome:
    """Give back what the order has, and what it has asked for or would ask for."""
    reservation = reservation or Reservation.of(event.order)
    lines = reservation.lines_in("asked", "reserved")
    return outcome(
        reservation=reservation.moved(lines, "releasing"), send=commands(ReleaseLine, event.order, lines)
    )


@service.handler(sends=[StockReleased, ReservationSettled], reservation=RESERVATIONS)
def gather_released(line: LineReleased, reservation: Reservation | None) -> Outcome:
    """Collect what was given back; with the last of it, all of the order's stock is free."""
    gathered = reservation and reservation.answered(line.sku, "released", waiting="releasing")
    if gathered is None:
        return nothing(f"{line.sku} was not being released")
    done = not gathered.lines_in("releasing")
    return outcome(reservation=gathered, send=[released(gathered)] if done else [])


@service.handler(sends=[ShipLine], reservation=RESERVATIONS)
def ship(event: ShipmentScheduled | ConfirmOrder, reservation: Reservation | None) -> Outcome:
    """Let the order's stock go: it leaves with the shipment."""
    lines = reservation.lines_in("reserved") if reservation else []
    if reservation is None or not lines:
        return nothing("it has no stock left to ship")
    return outcome(
        reservation=reservation.moved(lines, "shipped"), send=commands(ShipLine, event.order, lines)
    )


# Keyed by SKU


@service.handler(stock=STOCK)
def receive(event: StockReceived, stock: StockLevel | None) -> Outcome:
    """Put new pieces on the shelf."""
    return outcome(stock=(stock or StockLevel()).receive(event.units))


@service.handler(sends=[LineReserved, LineRefused], stock=STOCK, hold=HOLD)
def reserve_line(command: ReserveLine, stock: StockLevel | None, hold: Hold | None) -> Outcome:
    """Set the pieces aside, all or none. Asked again, it only says how it stands."""
    if hold is not None:
        return outcome(send=[answer(command, hold)], note=f"already {hold.status}")
    if stock is None or stock.on_hand < command.units:
        hold = Hold(units=command.units, status="refused")
        return outcome(hold=hold, send=[answer(command, hold)])
    hold = Hold(units=command.units, status="reserved")
    return outcome(stock=stock.reserve(command.units), hold=hold, send=[answer(command, hold)])


@service.handler(sends=[LineReleased], stock=STOCK, hold=HOLD)
def release_line(command: ReleaseLine, stock: StockLevel | None, hold: Hold | None) -> Outcome:
    """Give the pieces back. If it comes before they are asked for, its mark has them refused later."""
    told = LineReleased.to(command)
    match hold:
        case None | Hold(status="refused"):
            return outcome(hold=Hold(units=command.units, status="released"), send=[told])
        case Hold(status="reserved"):
            stock = (stock or StockLevel()).release(hold.units)
            return outcome(stock=stock, hold=hold.now("released"), send=[told])
        case Hold(status="released"):
            return outcome(send=[told], note="already released")
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
