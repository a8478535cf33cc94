"""Encodes records and their headers in Kafka's storage format (see `heads`).

Compiled with the hot path, where adding to a `BytesWriter` takes a few instructions and an `i64` is not an
object. A message is encoded as soon as it is staged. Before that, its objects made up most of a transaction,
and had left the processor's caches by the time it was sent (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from streams.kafka.records.batches import HeaderReader, read_sized
from streams.kafka.records.heads import HEADER
from streams.ports import Headers, Sendable


def write_unsigned(to: BytesWriter, number: i64) -> None:
    """Add an unsigned varint: seven bits in each byte, the lowest first."""
    while number >= 0x80:
        _write_byte(to, number & 0x7F | 0x80)
        number >>= 7
    _write_byte(to, number)


def _write_byte(to: BytesWriter, number: int) -> None:
    byte: u8 = number  # `u8(number)` would be a slow call where this is not compiled
    to.append(byte)


def unsigned_varint(number: int) -> bytes:
    """The bytes of an unsigned varint."""
    to = BytesWriter()
    write_unsigned(to, number)
    return to.getvalue()


def write_sized(to: BytesWriter, data: bytes | None) -> None:
    """Add the length of `data` as a zigzag number, then the bytes. None has the length -1."""
    if data is None:
        to.append(1)
    else:
        write_unsigned(to, 2 * len(data))
        to.write(data)


def sized(data: bytes | None) -> bytes:
    """The length of `data` as a zigzag number, then the bytes; see `write_sized`."""
    to = BytesWriter()
    write_sized(to, data)
    return to.getvalue()


def header_bytes(name: str, value: bytes | None) -> bytes:
    """An encoded record header."""
    return sized(name.encode()) + sized(value)


class PackedRecord:
    """An encoded record, from its key on. Each access to a part decodes it again."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def key(self) -> bytes | None:
        """The decoded key."""
        return self._read()[0]

    @property
    def value(self) -> bytes | None:
        """The decoded value."""
        return self._read()[1]

    @property
    def headers(self) -> Headers:
        """The decoded headers."""
        return self._read()[2]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def _read(self) -> tuple[bytes | None, bytes | None, Headers]:
        end: i64 = len(self.data)
        key, pos = read_sized(self.data, 0, end)
        value, pos = read_sized(self.data, pos, end)
        return key, value, HeaderReader().read(self.data, pos, end)


def record_bytes(record: Sendable) -> bytes:
    """The encoded record, from its key on. Headers from a client may have the value None."""
    if type(record) is PackedRecord:
        data: bytes = record.data
        return data
    to = BytesWriter()
    write_sized(to, record.key)
    write_sized(to, record.value)
    pairs: list[tuple[str, bytes | None]] = list(record.headers)
    write_unsigned(to, 2 * len(pairs))
    for name, value in pairs:
        write_sized(to, name.encode())
        write_sized(to, value)
    return to.getvalue()


def zigzag_length(number: i64) -> i64:
    """Encoded size in bytes of a zigzag number that is not negative."""
    size: i64 = 1
    number >>= 6
    while number:
        size += 1
        number >>= 7
    return size


def sized_length(data: bytes | None) -> i64:
    """Number of bytes that `write_sized` adds."""
    if data is None:
        return 1
    size: i64 = len(data)
    return zigzag_length(size) + size


def write_records(records: Sequence[Sendable], most: int) -> list[tuple[bytes, int]]:
    """Encode records into batch bodies, each returned with its number of records. With the batch header, a
    body has at most `most` bytes, unless it is a single larger record.
    """
    written: list[tuple[bytes, int]] = []
    room: i64 = most - HEADER.size
    to = BytesWriter()
    count: i64 = 0
    for record in records:
        data = record_bytes(record)
        # The two bytes before the offset delta are the attributes and the timestamp delta, both 0.
        rest: i64 = 2 + len(data)
        size = rest + zigzag_length(count)
        begun: i64 = len(to)
        if count and begun + zigzag_length(size) + size > room:
            written.append((to.getvalue(), count))
            to = BytesWriter()
            count = 0
            size = rest + 1
        write_unsigned(to, 2 * size)
        to.append(0)
        to.append(0)
        write_unsigned(to, 2 * count)
        to.write(data)
        count += 1
    written.append((to.getvalue(), count))
    return written
