"""Batches that a reader passes over unread."""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.kafka.partition_records import Isolation
from streams.kafka.records.heads import Head
from streams.ports import TP


@dataclass(slots=True)
class Sieve(Isolation):
    """Lets through the batches that have one of some texts in them, key or header or not: most have none, and
    looking for bytes is a hundred times as fast as reading records. `reached` is how far, in time.
    """

    wanted: tuple[bytes, ...] = ()
    reached: dict[TP, int] = field(default_factory=dict)

    def lets_through(self, tp: TP, head: Head, body: bytes) -> bool:
        """Whether the records of a batch are to be read."""
        self.reached[tp] = head.first_timestamp
        return any(text in body for text in self.wanted)
