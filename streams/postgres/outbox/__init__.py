"""The transactional outbox: a message is committed with the rows it tells of, or not at all."""

from __future__ import annotations

from streams.postgres.outbox.rows import NewRow, OutboxRow, record_of
from streams.postgres.outbox.writing import Outbox, OutboxTransaction

__all__ = ["NewRow", "Outbox", "OutboxRow", "OutboxTransaction", "record_of"]
