"""Record batch headers, and where batches begin and end.

The format is that of message version 2: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

#: Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp,
#: producer's id and epoch, base sequence, number of records.
HEADER = Struct(">qiibIhiqqqhii")
#: The CRC covers what follows it.
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
        """The last offset that belongs to the batch, of which there may be no record any more."""
        return self.base + self.last_delta

    @property
    def codec(self) -> int:
        """How it is compressed; 0: not at all."""
        return self.attributes & CODEC

    @property
    def is_transactional(self) -> bool:
        """Whether its producer's transaction decides if it is seen."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it is a marker of the broker's, and no message."""
        return bool(self.attributes & _CONTROL)


def split(data: bytes) -> Iterator[tuple[bytes, int | None]]:
    """The whole batches of a fetched answer, each with the first offset of the one behind it, if that is
    known. What is cut off at the end comes again with the next answer.

    Raises ValueError for a length that cannot be: what follows it cannot be found.
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
    """The head of a batch; None for one of another format than 2."""
    if raw[MAGIC_AT] != 2 or len(raw) < HEADER.size:
        return None
    return Head(*HEADER.unpack_from(raw))


def end_of(head: Head, after: int | None) -> int | None:
    """The offset behind a batch of which the head may lie, given the first offset of the next one; None when
    it is unknown: offsets must not be passed that may be another batch's.
    """
    end = head.last + 1
    agrees = end <= after if after is not None else head.records == head.last_delta + 1
    if end > head.base and agrees:
        return end
    return after if after is not None and after > head.base else None
