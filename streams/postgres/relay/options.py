"""How a relay works."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streams.units import MIB

#: Into how many shards aggregates are cut; the table's column `shard` has it too, for good.
SHARDS = 64


class After(StrEnum):
    """Fate of a row that was published."""

    MARK = "mark"
    DELETE = "delete"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Bounds of a relay. Times in seconds, sizes in bytes.

    Attributes:
        after: what to do with a published row: it gets its `published_at`, goes, or moves to the archive.
        batch: rows that are read at once at most.
        batch_bytes: bytes of their payloads, which one row more may exceed.
        in_flight: batches that are under way at once at most, so that one is marked while others are written.
        poll: after which the table is looked at without a notification.
        balance: between two looks at who else relays; a dead relay's shards are taken over within it.
        lease: after which PostgreSQL ends a session that is silent, and others take its shards.
        first_retry: until a refused row's second attempt; each further one takes twice as long.
        last_retry: the longest that becomes.
        outage_pause: the longest pause between attempts while Kafka or PostgreSQL is down.
        lock_wait: how long a statement waits for another session's lock, before others have their turn.
        stop_within: how long what is under way may take when the relay is stopped.
    """

    after: After = After.MARK
    batch: int = 2000
    batch_bytes: int = 2 * MIB
    in_flight: int = 4
    poll: float = 0.2
    balance: float = 1.0
    lease: float = 10.0
    first_retry: float = 1.0
    last_retry: float = 300.0
    outage_pause: float = 5.0
    lock_wait: float = 2.0
    stop_within: float = 5.0
