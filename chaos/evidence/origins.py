"""Which record something came of, and whether it is still the same record: pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

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
