"""Orders, and a gateway that remembers what it did, for tests of the application."""

from types import SimpleNamespace
from typing import Any

import msgspec

from agents.gateway.cards import ACCEPTED, DECLINED
from agents.messages import Order, OrderLine
from agents.payments.gateway import Charge, Refund

NOON = SimpleNamespace(time="2026-01-01T12:00:00.000Z")


def order(order_id: str = "o-1", *lines: tuple[str, int], **changes: Any) -> Order:
    """An order that nothing speaks against, of two pieces of `apple` by default."""
    ordered = tuple(OrderLine(sku=sku, units=units) for sku, units in lines or [("apple", 2)])
    given = Order(
        order_id=order_id, customer="c-1", lines=ordered, total_cents=1250, card=ACCEPTED, country="US"
    )
    return msgspec.structs.replace(given, **changes)


def no_row(subkey: str) -> None:
    del subkey


def does_nothing(outcome: Any) -> bool:
    return not outcome.rows and not outcome.send


class FakeGateway:
    """Does each operation once, and answers it again."""

    def __init__(self) -> None:
        self.done: dict[str, Charge | Refund] = {}

    async def charge(self, *, operation: str, cents: int, card: str) -> Charge:
        assert cents > 0
        status, reason = ("declined", "card_declined") if card == DECLINED else ("captured", "")
        charge = Charge(f"ch-{operation}", operation, status, reason, cents)
        return self.done.setdefault(operation, charge)

    async def refund(self, *, operation: str, charge_operation: str) -> Refund:
        charge = self.done[charge_operation]
        assert charge.status == "captured"
        refund = Refund(f"re-{operation}", operation, charge_operation, "refunded", charge.cents)
        return self.done.setdefault(operation, refund)

    async def void(self, *, operation: str, cents: int, card: str) -> Charge:
        del card
        void = Charge(f"ch-{operation}", operation, "declined", "voided", cents)
        return self.done.setdefault(operation, void)

    def total(self, status: str) -> int:
        """Cents of all operations that ended so."""
        return sum(done.cents for done in self.done.values() if done.status == status)


class NoGateway:
    """Must not be called."""

    error: Exception = AssertionError("the gateway was called")

    async def charge(self, **_: Any) -> Any:
        raise self.error

    refund = void = charge


class BrokenGateway(NoGateway):
    """Never answers."""

    error = ConnectionError("no answer")
