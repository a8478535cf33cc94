"""Messages that commit with the rows they tell of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncpg import UniqueViolationError

from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Codec, MakeCodec
from streams.model.message import Message
from streams.postgres.database import Connection
from streams.postgres.errors import MessageIdTaken
from streams.postgres.outbox.rows import NewRow, Upload, new_row
from streams.postgres.statements import statements

_INSERT = statements("outbox/outbox.sql")["insert"]
#: Of the columns that the statement takes.
_WIDTH = len(NewRow._fields)


class OutboxTransaction:
    """Messages to publish when the transaction commits.

    Attributes:
        messages: as they were given.
        rows: what they are inserted as.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.messages: list[Message] = []
        self.rows: list[NewRow] = []
        self._uploads: list[Upload] = []
        self._is_open = True

    def publish(
        self,
        message: Message,
        message_id: str | None = None,
        *,
        aggregate_type: str = "",
        correlation_id: str = "",
        causation_id: str = "",
        traceparent: str = "",
    ) -> str:
        """Have a message published after the commit; returns its id, a new one unless given.

        Its key is the aggregate's id. Messages of an aggregate are published in the order in which they were
        given here and their transactions have inserted them.

        Arguments:
            aggregate_type: the second word of the topic, unless given.
            correlation_id: the business operation; the message's own id, unless given.
            causation_id: of the message that this one answers.
            traceparent: of the trace that it belongs to (W3C).

        Raises Unencodable, or TooLarge, before anything is written.
        """
        if not self._is_open:
            raise RuntimeError("the outbox transaction is over: publish inside of its `async with`")
        row, upload = new_row(
            message,
            self._outbox.codec(type(message)),
            source=self._outbox.source,
            limit=self._outbox.limit,
            message_id=message_id or "",
            aggregate_type=aggregate_type,
            correlation_id=correlation_id,
            causation_id=causation_id,
            traceparent=traceparent,
            claims=self._outbox.claims,
        )
        if upload is not None:
            self._uploads.append(upload)
        self.rows.append(row)
        self.messages.append(message)
        return row.id

    def close(self) -> list[NewRow]:
        """Take no more; what was published."""
        self._is_open = False
        return self.rows

    async def check_in(self) -> None:
        """Write the payloads that rows refer to. Raises BlobsUnavailable."""
        if self._uploads and self._outbox.claims is not None:
            await self._outbox.claims.check_in_all(self._uploads)


class Outbox:
    """Writes messages to the outbox table.

    Arguments:
        codecs: makes the codec of a message class, as the application's producers have it.
        source: the CloudEvents source: ids are unique within it.
        limit: bytes of the largest record, as the topics allow it.
        claims: keep payloads that are too large for a record, or of a binary kind, in the object store; None:
            such messages are refused.
    """

    def __init__(
        self, codecs: MakeCodec, *, source: str, limit: int = 1_000_000, claims: ClaimChecks | None = None
    ) -> None:
        self.source = source
        self.limit = limit
        self.claims = claims
        self._make_codec = codecs
        self._codecs: dict[type[Message], Codec[Any]] = {}

    def codec(self, kind: type[Message]) -> Codec[Any]:
        """The codec of a message class."""
        return self._codecs.get(kind) or self._codecs.setdefault(kind, self._make_codec(kind, kind.TOPIC))

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[OutboxTransaction]:
        """A transaction on the connection, or a part of the one that is open there.

        What was published in it is inserted at its end, behind the business writes: a transaction that
        changes an aggregate's row has it locked by then, so that the order of an aggregate's messages is the
        order of its commits. When the block raises, or the transaction around it does, nothing is published.

        A payload that goes to the object store is written before, while the transaction is open: rows that it
        has locked stay so meanwhile. What is rolled back then leaves an object that the sweeper deletes.

        Raises MessageIdTaken when a message of one of the ids is there already, BlobsUnavailable when a
        payload could not be written.
        """
        async with connection.transaction():
            tx = OutboxTransaction(self)
            try:
                yield tx
            finally:
                rows = tx.close()
            if rows:
                await tx.check_in()
                await self._insert(connection, rows)

    async def _insert(self, connection: Connection, rows: list[NewRow]) -> None:
        schemas = {
            codec.fingerprint.decode(): codec.schema for codec in self._codecs.values() if codec.schema
        }
        used = {row.schema_fingerprint for row in rows} & schemas.keys()
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
        assert len(columns) == _WIDTH
        try:
            await connection.execute(_INSERT, *columns, list(used), [schemas[each] for each in used])
        except UniqueViolationError as error:
            raise MessageIdTaken(
                f"a message with one of these ids is in the outbox already: {error.detail}"
            ) from error
