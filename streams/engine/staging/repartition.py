"""Misrouted records on their way to the partition of their key, through the application's own topics. A
header has their origin, so that errors, retries and dead letters name it.
"""

from __future__ import annotations

from typing import Final

from streams.errors import MissingHeader
from streams.model.envelope import LOOPBACK
from streams.ports import Headers, OwnRecord, Record

#: The last header of a record in a repartition topic: `partition offset timestamp topic` of its source.
ORIGIN: Final = "steadfaust-origin"


def with_origin(record: Record) -> Headers:
    """The headers of a record that is forwarded."""
    headers = record.headers
    if headers and headers[-1][0] == LOOPBACK:
        # Someone else wrote this header. In our own record it would be our mark, and no lane would handle it.
        headers = [header for header in headers if header[0] != LOOPBACK]
    origin = f"{record.partition} {record.offset} {record.timestamp} {record.topic}"
    return [*headers, (ORIGIN, origin.encode())]


def original(record: Record, source: str) -> Record:
    """A forwarded record as it was in its `source`. Raises MissingHeader if no lane has written it."""
    headers = record.headers
    if headers and headers[-1][0] == ORIGIN:
        parts = (headers[-1][1] or b"").decode("utf-8", "replace").split(" ", 3)
        if len(parts) == 4 and parts[3] == source and all(map(_is_number, parts[:3])):
            partition, offset, timestamp = map(int, parts[:3])
            return OwnRecord(source, partition, offset, timestamp, record.key, record.value, headers[:-1])
    raise MissingHeader(
        f"{record.topic} partition {record.partition} offset {record.offset} has no {ORIGIN} header: only"
        " lanes write this topic"
    )


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20
