"""The port through which payments asks for money: values and a protocol, no I/O.

Every request names the business operation it belongs to (`capture:order-17`), the same for each attempt,
edit and replay. Asking for an operation that was already done answers what was done then, and does nothing.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

#: Why a charge is declined that the gateway finds malformed. It is not in the gateway's books.
INVALID = "invalid_charge"


class Charge(msgspec.Struct, frozen=True):
    """The result of one charge: the card was charged, or its bank refused.

    Attributes:
        charge_id: the gateway's own name for it; empty when it was `invalid_charge`.
        operation: the business operation of the charge.
        status: `captured` or `declined`. Either is final.
        reason: why it was declined (`card_declined`, `unknown_card`, `voided`, `invalid_charge`); empty when
            captured.
        cents: the amount of the request; it moved only if captured.
    """

    charge_id: str
    operation: str
    status: Literal["captured", "declined"]
    reason: str
    cents: int

    @property
    def declined(self) -> bool:
        """True when no money moved: a business answer, not an error."""
        return self.status == "declined"


class Refund(msgspec.Struct, frozen=True):
    """A charge given back in full.

    Attributes:
        refund_id: the gateway's own name for it.
        operation: the business operation of the refund.
        charge_operation: the operation of the charge that was given back.
        status: always `refunded`.
        cents: the amount given back, all of the charge.
    """

    refund_id: str
    operation: str
    charge_operation: str
    status: Literal["refunded"]
    cents: int


class Gateway(Protocol):
    """Charges cards and gives money back, each operation once.

    The methods raise GatewayRefused (of `agents.gateway.errors`) when asking again cannot help, and
    GatewayUnavailable when no answer came in the time allowed: the operation may have been done, and asking
    again is safe.
    """

    async def charge(self, *, operation: str, cents: int, card: str) -> Charge:
        """Charge `cents` (one or more) to `card` under `operation`. A declined card is an answer, and so is
        a charge that the gateway finds malformed.
        """
        ...

    async def void(self, *, operation: str, cents: int, card: str) -> Charge:
        """See to it that this charge is not made any more, also by an ask that is still on its way. Answers
        the charge that was made, or one that is declined: as `voided`, or as `invalid_charge` when it could
        never be made.
        """
        ...

    async def refund(self, *, operation: str, charge_operation: str) -> Refund:
        """Give back the whole of the charge that was made under `charge_operation`."""
        ...

    async def find(self, operation: str) -> Charge | Refund | None:
        """Return the charge or refund made under `operation`; None when there is none."""
        ...
