"""Records and their headers, written as Kafka stores them (see `heads`).

Compiled with the hot path, where adding to a `BytesWriter` is a few instructions and an `i64` is no object.
A message is bytes as soon as it is staged: its objects were most of what a transaction held, and no longer in
the processor's caches when it was sent (docs/adr/0012).
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
    """Add a number, of seven bits in a byte, the lowest first."""
    while number >= 0x80:
        _write_byte(to, number & 0x7F | 0x80)
        number >>= 7
    _write_byte(to, number)


def _write_byte(to: BytesWriter, number: int) -> None:
    byte: u8 = number  # `u8(number)` would be a slow call where this is not compiled
    to.append(byte)


def unsigned_varint(number: int) -> bytes:
    """The same alone."""
    to = BytesWriter()
    write_unsigned(to, number)
    return to.getvalue()


def write_sized(to: BytesWriter, data: bytes | None) -> None:
    """Add bytes after their length, a zigzag number; None has a length of -1."""
    if data is None:
        to.append(1)
    else:
        write_unsigned(to, 2 * len(data))
        to.write(data)


def sized(data: bytes | None) -> bytes:
    """Bytes after their length."""
    to = BytesWriter()
    write_sized(to, data)
    return to.getvalue()


def header_bytes(name: str, value: bytes | None) -> bytes:
    """A header."""
    return sized(name.encode()) + sized(value)


class PackedRecord:
    """A record as it is written, from its key on. Its parts are read anew at each use."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def key(self) -> bytes | None:
        """Its key."""
        return self._read()[0]

    @property
    def value(self) -> bytes | None:
        """Its value."""
        return self._read()[1]

    @property
    def headers(self) -> Headers:
        """Its headers."""
        return self._read()[2]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def _read(self) -> tuple[bytes | None, bytes | None, Headers]:
        end: i64 = len(self.data)
        key, pos = read_sized(self.data, 0, end)
        value, pos = read_sized(self.data, pos, end)
        return key, value, HeaderReader().read(self.data, pos, end)


def record_bytes(record: Sendable) -> bytes:
    """A record from its key on. Headers that came from a client may have None for a value."""
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
    """Bytes of a zigzag number that is not negative."""
    size: i64 = 1
    number >>= 6
    while number:
        size += 1
        number >>= 7
    return size


def sized_length(data: bytes | None) -> i64:
    """Bytes of what `write_sized` adds."""
    if data is None:
        return 1
    size: i64 = len(data)
    return zigzag_length(size) + size


def write_records(records: Sequence[Sendable], most: int) -> list[tuple[bytes, int]]:
    """The records of one batch after the other, each with how many they are: of at most `most` bytes with
    the batch's head, or one record.
    """
    written: list[tuple[bytes, int]] = []
    room: i64 = most - HEADER.size
    to = BytesWriter()
    count: i64 = 0
    for record in records:
        data = record_bytes(record)
        # Before the number are attributes, and how much later it is than the first record: none.
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
