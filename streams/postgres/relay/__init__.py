"""The polling relay: reads the outbox, hands its rows to a publisher, and marks what was published.

Aggregates are cut into shards, and a relay works on those whose advisory locks its session holds. So one
relay at a time publishes an aggregate's rows, and does it in their order.
"""

from __future__ import annotations

from streams.postgres.relay.counts import RelayCounts
from streams.postgres.relay.metrics import RelayMetrics
from streams.postgres.relay.options import After, RelayOptions
from streams.postgres.relay.publisher import Isolated, Published, Publisher
from streams.postgres.relay.relay import Relay

__all__ = [
    "After",
    "Isolated",
    "Published",
    "Publisher",
    "Relay",
    "RelayCounts",
    "RelayMetrics",
    "RelayOptions",
]
