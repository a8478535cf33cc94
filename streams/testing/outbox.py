"""An outbox in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from streams.model.codecs import MakeCodec, json_without_schema
from streams.model.message import Message
from streams.ports import Outgoing
from streams.postgres.errors import MessageIdTaken
from streams.postgres.outbox import NewRow, Outbox, OutboxRow, OutboxTransaction, record_of


class MemoryOutbox(Outbox):
    """Keeps what transactions publish, in the order in which they end; it needs no connection.

    Attributes:
        rows: what was committed.
        messages: the same as it was given.
    """

    def __init__(
        self, codecs: MakeCodec = json_without_schema, *, source: str = "test", limit: int = 1_000_000
    ) -> None:
        super().__init__(codecs, source=source, limit=limit)
        self.rows: list[OutboxRow] = []
        self.messages: list[Message] = []
        self._positions = count(1)

    @asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[OutboxTransaction]:
        """As that of the real one; the connection is not used. Raises MessageIdTaken."""
        del connection
        tx = OutboxTransaction(self)
        try:
            yield tx
        finally:
            rows = tx.close()
        taken = {row.id for row in self.rows}
        for row in rows:
            if row.id in taken:
                raise MessageIdTaken(f"a message with the id {row.id} is in the outbox already")
            taken.add(row.id)
        self.rows += [self._stored(row) for row in rows]
        self.messages += tx.messages

    def records(self, topic: str) -> list[Outgoing]:
        """The records that a relay would write to a topic."""
        return [record_of(row) for row in self.rows if row.topic == topic]

    def _stored(self, row: NewRow) -> OutboxRow:
        return OutboxRow(
            **row._asdict(),
            position=next(self._positions),
            shard=0,
            ce_specversion="1.0",
            ce_expirytime=None,
            ce_within=None,
            content_type=None,
            attempts=0,
            age=0.0,
        )
