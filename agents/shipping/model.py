"""Where we ship to."""

from __future__ import annotations

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
