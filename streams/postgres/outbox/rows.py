"""A message as the outbox keeps it, and the record that it becomes on Kafka."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, TypeAlias

from streams.errors import TooLarge
from streams.model.claim import CONTENT_TYPE, DATAREF, SHA256, SIZE, VALUE, Claim, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Codec
from streams.model.envelope import (
    CAUSATION,
    CORRELATION,
    EXPIRY,
    FINGERPRINT,
    ID,
    SOURCE,
    SPEC_VERSION,
    SUBJECT,
    TIME,
    TRACEPARENT,
    TYPE,
    WITHIN,
    headers_size,
    new_headers,
    record_size,
)
from streams.model.message import Message
from streams.ports import Outgoing

#: Room for the headers that are not counted: fingerprint, causation, traceparent.
_LATER_HEADERS = 256
_INSTEAD = "give the outbox claim checks, which keep the payload in the object store"

#: A payload that is checked in, and its claim.
Upload: TypeAlias = tuple[Claim, bytes]


class NewRow(NamedTuple):
    """The row of a message, in the order of the statement's arguments."""

    id: str
    aggregate_type: str
    aggregate_id: str
    event_type: str
    topic: str
    payload: bytes
    ce_source: str
    ce_time: str
    ce_correlationid: str
    schema_fingerprint: str
    ce_causationid: str | None
    traceparent: str | None
    content_type: str | None = None
    ce_dataref: str | None = None
    claim_sha256: str | None = None
    claim_size: str | None = None


class OutboxRow(NamedTuple):
    """A row that waits to be published. `age` is in seconds, of when it was read."""

    position: int
    shard: int
    id: str
    aggregate_type: str
    aggregate_id: str
    event_type: str
    topic: str
    payload: bytes
    ce_specversion: str
    ce_source: str
    ce_time: str
    ce_correlationid: str
    schema_fingerprint: str
    ce_causationid: str | None
    ce_expirytime: str | None
    ce_within: str | None
    content_type: str | None
    traceparent: str | None
    ce_dataref: str | None
    claim_sha256: str | None
    claim_size: str | None
    attempts: int
    age: float

    @property
    def aggregate(self) -> tuple[str, str]:
        """Whose order is kept."""
        return self.aggregate_type, self.aggregate_id


def new_row(
    message: Message,
    codec: Codec[Any],
    *,
    source: str,
    limit: int,
    message_id: str = "",
    aggregate_type: str = "",
    correlation_id: str = "",
    causation_id: str = "",
    traceparent: str = "",
    claims: ClaimChecks | None = None,
) -> tuple[NewRow, Upload | None]:
    """The row of a message that begins something or, with a causation, is an answer; and what is to be
    checked in before it is inserted.

    Raises Unencodable, and TooLarge for one whose record would have more than `limit` bytes and, without
    claim checks, for one of a binary kind.
    """
    topic, key = type(message).TOPIC, message.key
    headers = dict(
        new_headers(
            topic,
            key,
            source=source,
            time=time.time(),
            message_id=message_id,
            correlation_id=correlation_id,
        )
    )
    row = NewRow(
        id=headers[ID].decode(),
        aggregate_type=aggregate_type or entity_of(topic),
        aggregate_id=key,
        event_type=topic,
        topic=topic,
        payload=codec.encode(message),
        ce_source=source,
        ce_time=headers[TIME].decode(),
        ce_correlationid=headers[CORRELATION].decode(),
        schema_fingerprint=codec.fingerprint.decode(),
        ce_causationid=causation_id or None,
        traceparent=traceparent or None,
    )
    return _fitting(row, message, list(headers.items()), codec.content_type, limit, claims)


def _fitting(
    row: NewRow,
    message: Message,
    headers: list[tuple[str, bytes]],
    content_type: str,
    limit: int,
    claims: ClaimChecks | None,
) -> tuple[NewRow, Upload | None]:
    """The row, with its payload or with a reference to it."""
    binary = type(message).BINARY
    rest = record_size(row.aggregate_id.encode(), b"", headers) + _LATER_HEADERS
    if claims is not None and claims.is_due(len(row.payload), rest, limit=limit, binary=binary):
        claim = claims.claim(row.topic, row.id, row.payload, content_type)
        upload = claim, row.payload
        row = row._replace(
            payload=VALUE,
            content_type=claim.content_type,
            ce_dataref=claim.reference,
            claim_sha256=claim.sha256,
            claim_size=str(claim.size),
        )
        rest += headers_size(with_claim((), claim))
    elif binary:
        raise TooLarge(f"{row.topic} {row.id} is of a binary kind: {_INSTEAD}")
    else:
        upload = None
    if (size := rest + len(row.payload)) > limit:
        instead = "its key and headers are too long" if upload else _INSTEAD
        raise TooLarge(f"{row.topic} {row.id} makes a record of {size} bytes, {limit} is the most: {instead}")
    return row, upload


def entity_of(topic: str) -> str:
    """The second word of a topic's name, which is `<domain>.<entity>.<event>.v<N>`; the whole of one word."""
    words = topic.split(".")
    return words[1] if len(words) > 1 else topic


def record_of(row: OutboxRow) -> Outgoing:
    """The record on Kafka: as a producer of the same message writes it."""
    headers = [
        (SPEC_VERSION, row.ce_specversion.encode()),
        (ID, row.id.encode()),
        (TYPE, row.event_type.encode()),
        (SOURCE, row.ce_source.encode()),
        (SUBJECT, row.aggregate_id.encode()),
        (TIME, row.ce_time.encode()),
        (CORRELATION, row.ce_correlationid.encode()),
        (FINGERPRINT, row.schema_fingerprint.encode()),
    ]
    further = (
        (CAUSATION, row.ce_causationid),
        (EXPIRY, row.ce_expirytime),
        (WITHIN, row.ce_within),
        (DATAREF, row.ce_dataref),
        (CONTENT_TYPE, row.content_type),
        (SHA256, row.claim_sha256),
        (SIZE, row.claim_size),
        (TRACEPARENT, row.traceparent),
    )
    headers += [(name, text.encode()) for name, text in further if text is not None]
    return Outgoing(row.aggregate_id.encode(), row.payload, headers)
