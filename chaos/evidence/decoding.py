"""Values, keys and headers of messages and rows as published, without the library's codecs.

They are stated a second time on purpose: a mistake in how lanes write them would otherwise be made on both
sides of the comparison. All workers of a run write the newest schemas, so nothing has to be resolved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import msgspec
from aiokafka.partitioner import murmur2

from chaos.evidence.stores import Rows
from schemas import latest

_PREFIX = 2  # bytes of a local key that are its partition
_LENGTH = 2  # bytes of a row's key that say how long the first part of it is
_FINGERPRINT = 8  # bytes of a row that name its writer's schema

Decode = Callable[[bytes], dict[str, Any]]


def decoder(subject: str, schema: str = "") -> Decode:
    """How to read a topic's messages or a table's rows, by the subject's newest schema unless one is given.

    What it makes raises ValueError for what is not of the schema to its last byte.
    """
    parsed = fastavro.parse_schema(json.loads(schema or latest(subject)))

    def decode(data: bytes) -> dict[str, Any]:
        source = BytesIO(data)
        fields: Any = fastavro.schemaless_reader(source, parsed, None)
        if source.tell() != len(data):
            raise ValueError(f"{subject}: {len(data) - source.tell()} bytes too many at the end")
        return dict(fields)

    return decode


def rows_in(
    tables: Iterable[Mapping[str, Rows]], table: str, decode: Decode
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A table's rows in the state of every lane: both parts of the key (the second is often
    empty), and the row.
    """
    for lane in tables:
        for local, value in lane.get(table, {}).items():
            key, subkey = split_key(local[_PREFIX:])
            yield key, subkey, decode(value[_FINGERPRINT:])


def split_key(key: bytes) -> tuple[str, str]:
    """Both parts of a row's key, the first of which begins with its length."""
    ends = _LENGTH + int.from_bytes(key[:_LENGTH], "big")
    return key[_LENGTH:ends].decode(), key[ends:].decode()


ID, SOURCE, CAUSATION, TIME = "ce_id", "ce_source", "ce_causationid", "ce_time"
DATAREF, SHA256, SIZE = "ce_dataref", "claim-sha256", "claim-size"


def epoch_seconds(text: str) -> float | None:
    """A time in the form of RFC 3339; None for a value that is no time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


_encode = msgspec.msgpack.Encoder().encode

#: Headers as they may be in any record.
AnyHeaders = Sequence[tuple[str, bytes | None]]


class Origin(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.offset}"


def content(key: bytes | None, value: bytes | None, headers: AnyHeaders) -> bytes:
    """A digest of all that a client has sent."""
    return blake2b(_encode([key, value, list(headers)]), digest_size=16).digest()


def origin_in(headers: dict[str, bytes], topic: str, prefix: str) -> Origin:
    """The record of a topic that a dead letter or a retry says it is, by headers that begin with `prefix`;
    at -1 when these are missing.
    """
    partition, offset = (int(headers.get(f"{prefix}-source-{name}", -1)) for name in ("partition", "offset"))
    return Origin(topic, partition, offset)


def partition_of(key: bytes, partitions: int) -> int:
    """Of so many partitions."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)
