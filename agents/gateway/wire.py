"""The gateway's requests and answers, as JSON, and the rows that it stores."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

# The first character keeps `.` and `..` out of URLs; control characters have no place in a name.
Operation = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z][^\x00-\x1f\x7f]*\Z", max_length=200)]
Cents = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Card = Annotated[str, msgspec.Meta(pattern=r"^tok_[0-9a-z_]+\Z", max_length=64)]


class ChargeAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Charge `cents` to `card`, once for `operation`."""

    operation: Operation
    cents: Cents
    card: Card


class VoidAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Never charge `cents` to `card` for `operation`, unless that is done already."""

    operation: Operation
    cents: Cents
    card: Card


class RefundAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give back the charge made under `charge_operation`, once for `operation`."""

    operation: Operation
    charge_operation: Operation


class Charged(msgspec.Struct, frozen=True, tag_field="kind", tag="charge"):
    """A charge in the ledger; `reason` says why it was declined and is empty when it was captured."""

    charge_id: str
    operation: str
    status: Literal["captured", "declined"]
    reason: str
    cents: int
    card: str
    done_at: str


class Refunded(msgspec.Struct, frozen=True, tag_field="kind", tag="refund"):
    """A refund in the ledger, of all that was charged under `charge_operation`."""

    refund_id: str
    operation: str
    charge_operation: str
    status: Literal["refunded"]
    cents: int
    done_at: str


class Refusal(msgspec.Struct, frozen=True):
    """Why the gateway did nothing: `error` for programs, `detail` for people."""

    error: Literal[
        "operation_conflict",
        "already_refunded",
        "not_captured",
        "unknown_charge",
        "unknown_operation",
        "unavailable",
        "ledger_unavailable",
        "invalid",
        "failed",
    ]
    detail: str


class Totals(msgspec.Struct, frozen=True):
    """The ledger added up; amounts in cents."""

    captured: int
    captured_cents: int
    declined: int
    declined_cents: int
    refunded: int
    refunded_cents: int


class LedgerPage(msgspec.Struct, frozen=True):
    """Rows in the order in which they were done; `next` is the `after` of the next page, None on the last."""

    totals: Totals
    rows: list[Charged | Refunded]
    next: int | None
