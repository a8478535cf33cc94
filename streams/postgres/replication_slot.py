"""The replication slot by which change data capture reads the database's log: how far behind it is.

A slot that nobody reads keeps the log on the disk until the disk is full, or until the server drops the slot
at its limit (`max_slot_wal_keep_size`).
"""

from __future__ import annotations

from typing import NamedTuple

from streams.postgres.database import Connection
from streams.postgres.statements import statements
from streams.units import MIB

PUBLICATION = "outbox_publication"
"""What the slot passes on: the outbox and the heartbeats."""

SLOT_PREFIX = "outbox_"
"""Before the database's name: the slot's name."""

WARN_AT = 0.5
"""The share of the limit at which the log that is kept is worth a warning."""

WARN_AT_BYTES = 512 * MIB
"""The same where the server sets no limit."""

_SQL = statements("cdc/cdc.sql")


class SlotLag(NamedTuple):
    """How a replication slot stands.

    Attributes:
        active: a connector reads it now.
        status: the server's word: `reserved`, `extended`, `unreserved` or `lost`.
        behind: bytes of the log that the connector has not confirmed.
        retained: bytes of the log that the server keeps for it; 0 when it is lost.
        room: bytes until the server drops it; None: it never does, and the disk fills instead.
    """

    active: bool
    status: str
    behind: int
    retained: int
    room: int | None

    @property
    def is_lost(self) -> bool:
        """The server has dropped what it had not read."""
        return self.status == "lost"

    @property
    def warning(self) -> str:
        """What an operator should know, in a sentence; empty: nothing."""
        if self.is_lost:
            return (
                "the replication slot is lost, since the server has dropped log that was not read: the relay"
                " begins again with the rows that wait in the table"
            )
        if not self.active:
            return f"nobody reads the replication slot, which keeps {self.retained / MIB:.0f} MiB of the log"
        limit = None if self.room is None else self.retained + max(self.room, 0)
        if limit is None and self.retained >= WARN_AT_BYTES:
            return f"the replication slot keeps {self.retained / MIB:.0f} MiB of the log, without a limit"
        if limit and self.retained >= WARN_AT * limit:
            kept = f"{self.retained / MIB:.0f} of at most {limit / MIB:.0f} MiB"
            return f"the replication slot keeps {kept} of the log: the connector is too slow, or stands still"
        return ""


async def slot_lag(connection: Connection) -> SlotLag | None:
    """How the slot of this database stands; None: there is none, since no connector has read it yet."""
    row = await connection.fetchrow(_SQL["slot"])
    if row is None:
        return None
    return SlotLag(row["active"], row["wal_status"], row["behind"] or 0, row["retained"] or 0, row["room"])


async def drop_slot(connection: Connection) -> None:
    """Let the server forget the slot, and the log that it keeps for it; nothing when there is none."""
    await connection.execute(_SQL["drop_slot"])
