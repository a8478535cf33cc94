"""Headers of messages, as published: stated a second time on purpose, as in `chaos.evidence.rebuilt`.

A mistake in how lanes name or write them would otherwise be made on both sides of the comparison.
"""

from __future__ import annotations

from datetime import datetime

ID, SOURCE, CAUSATION, TIME = "ce_id", "ce_source", "ce_causationid", "ce_time"
DATAREF, SHA256, SIZE = "ce_dataref", "claim-sha256", "claim-size"


def epoch_seconds(text: str) -> float | None:
    """A time as RFC 3339 has it; None for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
