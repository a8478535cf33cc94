"""Where we ship to."""

from __future__ import annotations

from tables.shipments import Shipment
from tables.values import Order

UNSUPPORTED_DESTINATION = "unsupported_destination"

#: ISO 3166-1 alpha-2 codes.
DESTINATIONS = frozenset(
    {
        *("CA", "MX", "US"),
        *(
            "AT",
            "BE",
            "CH",
            "CZ",
            "DE",
            "DK",
            "ES",
            "FI",
            "FR",
            "GB",
            "GR",
            "HU",
            "IE",
            "IT",
            "LU",
            "NL",
            "NO",
        ),
        *("PL", "PT", "RO", "SE"),
        *("AU", "JP", "KR", "NZ", "SG"),
    }
)


def ships_to(country: str) -> bool:
    """Whether an order can go to `country`."""
    return country in DESTINATIONS


def planned(order: Order) -> Shipment:
    """The order's shipment, scheduled or refused."""
    if ships_to(order.country):
        return Shipment(status="scheduled", country=order.country)
    return Shipment(status="refused", country=order.country, reason=UNSUPPORTED_DESTINATION)
