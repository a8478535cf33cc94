"""The replication slot by which change data capture reads the database's log: how far behind it is.

A slot without a reader keeps the log on the disk until the disk is full, or until the server drops the slot
at its limit (`max_slot_wal_keep_size`).
"""

from __future__ import annotations

from typing import NamedTuple

from streams.postgres.database import Connection
from streams.postgres.statements import statements
from streams.units import MIB

PUBLICATION = "outbox_publication"
"""The publication of the slot: the outbox and the heartbeats."""

SLOT_PREFIX = "outbox_"
"""Before the database's name: the slot's name."""

WARN_AT = 0.5
"""The share of the limit at which the log that is kept is worth a warning."""

WARN_AT_BYTES = 512 * MIB
"""The same in bytes, whatever the limit is, unless a setting says otherwise."""

_SQL = statements("cdc/cdc.sql")


#: Why a slot is lost, by the server's word.
_CAUSES = {
    "": "the server has dropped log that was not read",
    "wal_removed": "the server has dropped log that was not read (`max_slot_wal_keep_size`)",
    "idle_timeout": "nothing has read it for as long as `idle_replication_slot_timeout` says",
    "rows_removed": "the server has removed rows that it needs",
    "wal_level_insufficient": "the server was run with a `wal_level` below `logical`",
}


class SlotLag(NamedTuple):
    """State of a replication slot.

    Attributes:
        active: a connector reads it now.
        status: the server's word: `reserved`, `extended`, `unreserved` or `lost`.
        behind: bytes of the log that the connector has not confirmed.
        retained: bytes of the log that the server keeps for it; 0 when it is lost.
        room: bytes until the server drops it; None: it never does, and the disk fills instead.
        warn_at: bytes retained from which on operators are warned.
        invalidated: the server's word for why it is lost, from PostgreSQL 17 on; else empty.
    """

    active: bool
    status: str
    behind: int
    retained: int
    room: int | None
    warn_at: int = WARN_AT_BYTES
    invalidated: str = ""

    @property
    def is_lost(self) -> bool:
        """It cannot be read any more."""
        return self.status == "lost"

    @property
    def cause(self) -> str:
        """Why it is lost."""
        known = _CAUSES.get(self.invalidated)
        return known or f"the server has invalidated it ({self.invalidated})"

    @property
    def limit(self) -> int | None:
        """Bytes at which the server drops it; None: never."""
        return None if self.room is None else self.retained + max(self.room, 0)

    @property
    def warns_from(self) -> int:
        """Bytes retained from which on it warns: a share of the server's limit, or the setting if less."""
        return self.warn_at if not self.limit else min(self.warn_at, int(WARN_AT * self.limit))

    @property
    def warning(self) -> str:
        """A warning for operators, with what to do; empty: none."""
        if self.is_lost:
            return f"{self.trouble}. If no relay runs: `steadfaust outbox relay`"
        if self.trouble and not self.active and self.status != "unreserved":
            return f"{self.trouble}: start Kafka Connect, or see in `steadfaust cdc status` why it does not"
        return self.trouble

    @property
    def trouble(self) -> str:
        """The same without what a relay that runs, or a Connect that answers, does already."""
        if self.is_lost:
            return (
                f"the replication slot is lost, since {self.cause}: a relay begins again with the rows that"
                " wait in the table"
            )
        mib = f"{self.retained / MIB:.0f}"
        if self.status == "unreserved":
            return (
                f"the replication slot keeps {mib} MiB of the log, over its limit: the server drops it at the"
                " next checkpoint"
            )
        if not self.active:
            return f"nothing reads the replication slot, which keeps {mib} MiB of log"
        if self.retained < self.warns_from:
            return ""
        if self.limit is None:
            return (
                f"the replication slot keeps {mib} MiB of the log, without a limit, until the disk is full:"
                " the connector is too slow, or has stopped"
            )
        kept = f"{mib} of at most {self.limit / MIB:.0f} MiB"
        return f"the replication slot keeps {kept} of the log: the connector is too slow, or has stopped"


async def slot_lag(connection: Connection, warn_at: int = WARN_AT_BYTES) -> SlotLag | None:
    """State of this database's slot; None: there is none, since no connector has read it yet."""
    row = await connection.fetchrow(_SQL["slot"])
    if row is None:
        return None
    behind, retained = row["behind"] or 0, row["retained"] or 0
    reason = row["reason"] or ""
    return SlotLag(row["active"], row["wal_status"], behind, retained, row["room"], warn_at, reason)


async def drop_slot(connection: Connection) -> None:
    """Let the server forget the slot, and the log that it keeps for it; nothing when there is none."""
    await connection.execute(_SQL["drop_slot"])
