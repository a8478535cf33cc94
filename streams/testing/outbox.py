"""An outbox in memory, and a publisher in memory for relays that read a real outbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from streams.errors import ClusterUnavailable
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import MakeCodec, json_without_schema
from streams.model.message import Message
from streams.ports import Outgoing
from streams.postgres.errors import MessageIdTaken
from streams.postgres.outbox import NewRow, Outbox, OutboxRow, OutboxTransaction, record_of
from streams.postgres.relay import Isolated, Published


class MemoryOutbox(Outbox):
    """Keeps what transactions publish, in commit order. It needs no connection.

    Attributes:
        rows: the committed rows.
        messages: the committed messages, before they were encoded.
    """

    def __init__(
        self,
        codecs: MakeCodec = json_without_schema,
        *,
        source: str = "test",
        limit: int = 1_000_000,
        claims: ClaimChecks | None = None,
    ) -> None:
        super().__init__(codecs, source=source, limit=limit, claims=claims)
        self.rows: list[OutboxRow] = []
        self.messages: list[Message] = []
        self._positions = count(1)

    @asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[OutboxTransaction]:
        """A transaction like that of the real outbox; `connection` is ignored. Raises MessageIdTaken and
        BlobsUnavailable.
        """
        del connection
        tx = OutboxTransaction(self)
        try:
            yield tx
        finally:
            rows = tx.close()
        await tx.check_in()
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
            attempts=0,
            age=0.0,
        )


class MemoryPublisher:
    """Keeps the rows that it publishes.

    Attributes:
        written: the published rows, in order.
        announced: schemas by fingerprint.
        refuses: function that returns why a row is refused, or an empty text.
        is_down: whether every request fails, as if the cluster were down.
        holds: while this event is cleared, `publish` waits and `is_waiting` is true.
    """

    def __init__(self) -> None:
        self.written: list[OutboxRow] = []
        self.announced: dict[str, str] = {}
        self.refuses: Callable[[OutboxRow], str] = lambda _: ""
        self.is_down = False
        self.is_waiting = False
        self.holds = asyncio.Event()
        self.holds.set()

    async def announce(self, schemas: Mapping[str, str]) -> None:
        """Keep the schemas. Raises ClusterUnavailable while `is_down`."""
        self._require()
        self.announced |= schemas

    async def publish(self, rows: Sequence[OutboxRow]) -> Published:
        """Keep the rows. A batch with a refused row is not written at all."""
        self.is_waiting = not self.holds.is_set()
        try:
            await self.holds.wait()
        finally:
            self.is_waiting = False
        if self.is_down:
            return Published([], [], "the cluster is down")
        if any(self.refuses(row) for row in rows):
            return Published([], list(rows), "")
        self.written += rows
        return Published(list(rows), [], "")

    async def isolate(self, rows: Sequence[OutboxRow]) -> Isolated:
        """Publish the rows one by one. If a row is refused, later rows of its aggregate are left out. Raises
        ClusterUnavailable while `is_down`.
        """
        self._require()
        done, held = Isolated([], []), set()
        for row in rows:
            if row.aggregate in held:
                continue
            if why := self.refuses(row):
                held.add(row.aggregate)
                done.refused.append((row, why))
            else:
                done.written.append(row)
        self.written += done.written
        return done

    def stop(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _require(self) -> None:
        if self.is_down:
            raise ClusterUnavailable("the cluster is down")
