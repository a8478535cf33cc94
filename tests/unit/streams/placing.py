"""An order that is paid for: the application of tests that wire one."""

from typing import ClassVar

from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from tests.keyed import Keyed

service = Service("svc")


class Placed(Keyed, frozen=True):
    TOPIC: ClassVar[str] = "orders.placed.v1"


class Paid(Keyed, frozen=True):
    TOPIC: ClassVar[str] = "orders.paid.v1"


class Stock(Row, frozen=True):
    n: int


STOCK = Table("stock", Stock)


@service.handler(sends=(Paid,), stock=STOCK)
def pay(order: Placed, stock: Stock | None) -> Outcome:
    """Take the money."""
    return outcome(stock=Stock(n=1), send=[Paid(k=order.k)])
