"""Records and their headers, written as Kafka stores them (see `heads`).

Compiled with the hot path. The headers of a message are bytes as soon as it is staged: as objects they are
most of what a transaction holds, and no longer in the processor's caches when it is sent (docs/adr/0062).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from streams.ports import Outgoing
from streams.records.batches import read_headers
from streams.records.heads import HEADER


def unsigned_varint(number: int) -> bytes:
    """A number of seven bits in a byte, the lowest first."""
    written, bits = 0, 0
    while number >= 0x80:
        written |= (number & 0x7F | 0x80) << bits
        number >>= 7
        bits += 8
    return (written | number << bits).to_bytes(bits // 8 + 1, "little")


_SMALL: Final = [unsigned_varint(2 * number) for number in range(4096)]


def varint(number: int) -> bytes:
    """A zigzag number that is not negative."""
    return _SMALL[number] if number < 4096 else unsigned_varint(2 * number)


def sized(data: bytes | None) -> bytes:
    """Bytes after their length; None has a length of -1."""
    return b"\1" if data is None else varint(len(data)) + data


def header_bytes(name: str, value: bytes | None) -> bytes:
    """A header."""
    return sized(name.encode()) + sized(value)


class PackedHeaders:
    """Headers as they are written, after their number; a sequence of names with values for who looks."""

    def __init__(self, number: int, parts: Sequence[bytes]) -> None:
        """`parts` are one after the other those headers, of which there are so many."""
        self.data = varint(number) + b"".join(parts)

    def __len__(self) -> int:
        return len(read_headers(self.data, 0, len(self.data)))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(read_headers(self.data, 0, len(self.data)))


def headers_bytes(headers: Any) -> bytes:
    """Headers after their number. Those that came from a client may have None for a value."""
    if type(headers) is PackedHeaders:
        data: bytes = headers.data
        return data
    pairs: list[tuple[str, bytes | None]] = list(headers)
    return varint(len(pairs)) + b"".join([header_bytes(name, value) for name, value in pairs])


def write_records(records: Sequence[Outgoing], most: int) -> list[tuple[bytes, int]]:
    """The records of one batch after the other, each with how many they are: of at most `most` bytes with
    the batch's head, or one record.
    """
    written: list[tuple[bytes, int]] = []
    parts: list[bytes] = []
    size, count = HEADER.size, 0
    for key, value, headers in records:
        number, body = varint(count), sized(key) + sized(value) + headers_bytes(headers)
        # Before the number are attributes, and how much later it is than the first record: none.
        length = varint(2 + len(number) + len(body))
        added = len(length) + 2 + len(number) + len(body)
        if count and size + added > most:
            written.append((b"".join(parts), count))
            parts, size, count = [], HEADER.size, 0
            number, length = b"\0", varint(3 + len(body))
            added = len(length) + 3 + len(body)
        parts += (length, b"\0\0", number, body)
        size += added
        count += 1
    written.append((b"".join(parts), count))
    return written
