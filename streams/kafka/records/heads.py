"""Parses record batch headers, and splits fetched bytes into batches.

The format is that of message version 2: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

#: Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp,
#: producer's id and epoch, base sequence, number of records.
HEADER = Struct(">qiibIhiqqqhii")
#: Position after the CRC; the CRC covers everything from here on.
CHECKED_FROM = 21
_LOG_OVERHEAD = 12
LENGTH = Struct(">i")
OFFSET = Struct(">q")
MAGIC_AT = 16
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


class Head(NamedTuple):
    """Record batch header."""

    base: int
    length: int
    epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    sequence: int
    records: int

    @property
    def last(self) -> int:
        """The last offset of the batch. Compaction may have removed its record."""
        return self.base + self.last_delta

    @property
    def codec(self) -> int:
        """Compression codec; 0 means none."""
        return self.attributes & CODEC

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker of the broker instead of messages."""
        return bool(self.attributes & _CONTROL)


def split(data: bytes) -> Iterator[tuple[bytes, int | None]]:
    """The complete batches in fetched bytes, each with the first offset of the next batch, if known. An
    incomplete batch at the end is left out; the next fetch brings it again.

    Raises ValueError for an impossible length, because the next batch cannot be found then.
    """
    pos, end = 0, len(data)
    while end - pos >= _LOG_OVERHEAD:
        (length,) = LENGTH.unpack_from(data, pos + 8)
        if length <= MAGIC_AT + 1 - _LOG_OVERHEAD:
            raise ValueError(f"the batch at offset {OFFSET.unpack_from(data, pos)[0]} has length {length}")
        behind = pos + _LOG_OVERHEAD + length
        if behind > end:
            return
        after = OFFSET.unpack_from(data, behind)[0] if end - behind >= OFFSET.size else None
        yield data[pos:behind], after
        pos = behind


def head_of(raw: bytes) -> Head | None:
    """The header of a batch; None if its format is not 2, or if it is too short."""
    if raw[MAGIC_AT] != 2 or len(raw) < HEADER.size:
        return None
    return Head(*HEADER.unpack_from(raw))


def end_of(head: Head, after: int | None) -> int | None:
    """The offset after a batch with an unreliable header; `after` is the first offset of the next batch.
    Returns None if it is unclear, so that a reader does not skip offsets of another batch.
    """
    end = head.last + 1
    agrees = end <= after if after is not None else head.records == head.last_delta + 1
    if end > head.base and agrees:
        return end
    return after if after is not None and after > head.base else None
