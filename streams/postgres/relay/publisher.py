"""The port by which a relay writes to Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from streams.postgres.outbox import OutboxRow


class Published(NamedTuple):
    """The outcome of rows that were written together. Rows that are in neither list may have been written,
    or not, and are not written any more.

    Attributes:
        written: what all replicas in sync have.
        suspects: what was not written, because the broker has refused a batch in which it was, or would.
        doubt: why it is unknown of the others; empty when there are none.
    """

    written: list[OutboxRow]
    suspects: list[OutboxRow]
    doubt: str


class Isolated(NamedTuple):
    """The outcome of rows that were written one by one: `refused` has why."""

    written: list[OutboxRow]
    refused: list[tuple[OutboxRow, str]]


class Publisher(Protocol):
    """Writes rows to Kafka. Methods raise ClusterUnavailable when they could not do it, or cannot tell."""

    async def announce(self, schemas: Mapping[str, str]) -> None:
        """Announce schemas, text by fingerprint, to readers."""

    async def publish(self, rows: Sequence[OutboxRow]) -> Published:
        """Write rows, of which those of an aggregate are for one topic, in the order of each aggregate."""

    async def isolate(self, rows: Sequence[OutboxRow]) -> Isolated:
        """Write rows one by one, to find which are refused; those of an aggregate that come after a refused
        one are left alone. Others may publish meanwhile.
        """

    def stop(self) -> None:
        """Write no more, at once: what is under way is in doubt. It may publish again later."""

    async def close(self) -> None:
        """Let go of the connections."""
