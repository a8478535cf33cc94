"""Counts of a relay, and its obstacles."""

from __future__ import annotations

import time
from collections.abc import Sequence

from streams.postgres.outbox import OutboxRow


class RelayCounts:
    """Counts of the relay. Subclasses may pass them on.

    Attributes:
        no_database, no_kafka: why it cannot be reached; empty while it can.
        waiting: what PostgreSQL does not do now, and for whom; empty while it does.
        attempts: how often it has refused that since.
        shards, relays: how many shards are ours, and how many relays share them.
    """

    def __init__(self) -> None:
        self.no_database = "not connected yet"
        self.no_kafka = ""
        self.waiting = ""
        self.attempts = 0
        self.shards = 0
        self.relays = 0

    def published(self, rows: Sequence[OutboxRow], seconds: float) -> None:
        """These rows were written and marked, so many seconds after they were read."""

    def relayed(self, ages: Sequence[float]) -> None:
        """Rows of these ages, in seconds, were written by a connector and marked."""

    def refused(self, row: OutboxRow) -> None:
        """A broker has refused this row."""

    def shares(self, shards: int, relays: int) -> None:
        """So many shards are ours, and so many relays share them all."""
        self.shards, self.relays = shards, relays

    def database_down(self, why: str) -> None:
        """PostgreSQL cannot be reached."""
        self.no_database = why

    def database_up(self) -> None:
        """The obstacle is gone."""
        self.no_database = ""

    def refused_by_database(self, why: str) -> None:
        """PostgreSQL answers, and refuses the statement."""
        self.waiting, self.attempts = why, self.attempts + 1

    def database_does(self) -> None:
        """It does."""
        self.waiting, self.attempts = "", 0

    def kafka_down(self, why: str) -> None:
        """Kafka did not take a batch."""
        self.no_kafka = why

    def kafka_up(self) -> None:
        """It took one."""
        self.no_kafka = ""

    def stopped(self) -> None:
        """The relay has ended."""
        self.no_database = f"the relay was stopped at {time.strftime('%H:%M:%S')}"
