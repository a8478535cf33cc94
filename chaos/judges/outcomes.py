"""What becomes of an order by what was asked for, and nothing else: stated in the words of the published
events, without asking the services' code.

It holds where no two orders compete for the last pieces of a SKU, as in the orders of a run: there is enough
of it for all who ask, or for none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from agents.gateway.cards import ACCEPTED
from agents.messages import Order

CONFIRMED = "confirmed"
OUT_OF_STOCK, DECLINED, NOWHERE = "out_of_stock", "card_declined", "unsupported_destination"
#: Why an order is cancelled before anybody has done anything for it.
REFUSALS = frozenset({"no_lines", "too_many_lines", "order_too_large"})
_MOST_LINES, _MOST_BYTES = 10_000, 500_000
#: Where nobody ships to, of the countries that customers name.
_NOWHERE = frozenset({"AQ"})


def outcome_of(order: Order, received: Mapping[str, int]) -> str:
    """`confirmed`, or why it is cancelled; of several reasons the one that comes first on its way, which asks
    the stock, then the card, then the shipment. `received` are the pieces of each SKU that ever came in; of
    an unknown one there are none.
    """
    if not order.lines:
        return "no_lines"
    if len(order.lines) > _MOST_LINES:
        return "too_many_lines"
    if len(msgspec.json.encode(order)) > _MOST_BYTES:
        return "order_too_large"
    if any(units > received.get(sku, 0) for sku, units in units_of(order).items()):
        return OUT_OF_STOCK
    if order.total_cents and order.card != ACCEPTED:
        return DECLINED
    return NOWHERE if order.country in _NOWHERE else CONFIRMED


def units_of(order: Order) -> Counter[str]:
    """The pieces of each SKU on all lines of the order."""
    units: Counter[str] = Counter()
    for line in order.lines:
        units[line.sku] += line.units
    return units
