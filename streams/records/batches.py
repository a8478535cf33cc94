"""Record batches as Kafka stores them, read with care: damaged records are kept apart from sound ones.

Pure, and slower than the client library, which reads what is sound. Nothing here raises for what a batch
holds. The format is that of message version 2, and of the versions 0 and 1 before it without compression:
https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from streams.ports import TP, Damaged, Headers, Record
from streams.records.decompression import CannotOpen, decompressed
from streams.records.heads import CODEC, HEADER, LENGTH, LOG_APPEND_TIME, MAGIC_AT, OFFSET, Head, head_of

#: Bytes of the smallest record after its length: attributes, two deltas, three lengths.
_SMALLEST = 6
#: A record's headers may be as many; in memory each takes fifty times its two bytes there.
MAX_HEADERS = 1000
_INT64 = 1 << 63

#: What the bytes of a `Damaged` are.
BATCH = "record batch"
REST = "records of a batch"
RECORD = "record"


class Plain(NamedTuple):
    """A sound record; see `ports.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def damaged_batch(tp: TP, raw: bytes, base: int, last: int, timestamp: int, why: str) -> Damaged:
    """A whole batch that cannot be opened, at its last offset: a reader that has passed it has passed
    all of it.
    """
    text = f"the record batch of offsets {base} to {last} of {tp.topic}[{tp.partition}] cannot be read: {why}"
    return Damaged(*tp, last, timestamp, None, raw, (), BATCH, text)


#: What a sound record is made into.
Make = Callable[..., Record]


def read_batch(
    tp: TP, raw: bytes, limit: int, end: int | None = None, make: Make = Plain
) -> Iterator[Record]:
    """Every record of a batch whose checksum is right, in order of their offsets, which are all different.
    `limit` bounds the bytes that it may decompress to; `end` is the offset behind it, if its head lies.
    """
    head = head_of(raw)
    if head is None:
        yield _legacy(tp, raw)
        return
    last = head.last if end is None else end - 1
    try:
        yield from walk(tp, head, opened(head, raw, limit), last, make)
    except CannotOpen as error:
        yield damaged_batch(tp, raw, head.base, last, head.max_timestamp, str(error))


def opened(head: Head, raw: bytes, limit: int) -> bytes:
    """The records of a batch, decompressed. Raises CannotOpen."""
    body = raw[HEADER.size :]
    if not head.codec or not body:
        return body
    return decompressed(head.codec, body, limit)


def walk(tp: TP, head: Head, body: bytes, last: int, make: Make = Plain) -> Iterator[Record]:
    """The records of an opened batch. A damaged one has the place after the one before it; the
    records of an unreadable rest are one, in the place of the last offset.
    """
    at, pos, number, end = head.base - 1, 0, 0, len(body)
    most = min(head.records, last - head.base + 1)
    while pos < end:
        number += 1
        try:
            stop = _frame(body, pos, is_last=number >= most)
        except _Broken as why:
            yield _rest(tp, head, body[pos:], at + 1, last, str(why))
            return
        # Each of those that are to come needs a place too.
        record = _record(tp, head, body, pos, stop, (at, last - (most - number)), make)
        yield record
        at, pos = record.offset, stop
    if number < most:
        text = f"the batch says that it has {head.records} records, and has {number}"
        yield _rest(tp, head, b"", at + 1, last, text)


def _rest(tp: TP, head: Head, raw: bytes, begin: int, last: int, why: str) -> Damaged:
    text = f"the records from offset {begin} to {last} of {tp.topic}[{tp.partition}] cannot be read: {why}"
    return Damaged(*tp, last, head.max_timestamp, None, raw, (), REST, text)


class _Broken(ValueError):
    """Why bytes are no record; `key` is its key, if that much was readable."""

    key: bytes | None = None


def _frame(body: bytes, pos: int, *, is_last: bool) -> int:
    """Where the record at a place ends."""
    size, begin = _read_varint(body, pos, len(body))
    left = len(body) - begin
    if size < _SMALLEST or size > left:
        raise _Broken(f"a record says that it has {size} bytes, and there are {left}")
    if is_last and size < left:
        raise _Broken(f"{left - size} bytes are left over behind the last record")
    return begin + size


def _record(
    tp: TP, head: Head, body: bytes, pos: int, stop: int, between: tuple[int, int], make: Make
) -> Record:
    """The record between two places, of an offset after the first of `between` up to the second."""
    before, _ = between
    try:
        offset, timestamp, key, value, headers = _parsed(head, body, pos, stop, between)
    except _Broken as why:
        text = f"the record at offset {before + 1} of {tp.topic}[{tp.partition}] cannot be read: {why}"
        raw = body[pos:stop]
        return Damaged(*tp, before + 1, head.max_timestamp, why.key, raw, (), RECORD, text)
    return make(*tp, offset, timestamp, key, value, headers)


def _parsed(
    head: Head, body: bytes, pos: int, stop: int, between: tuple[int, int]
) -> tuple[int, int, bytes | None, bytes | None, Headers]:
    _, pos = _read_varint(body, pos, stop)  # its length, which `stop` says
    later, pos = _read_varint(body, pos + 1, stop)  # one byte of attributes, of which none has a meaning
    delta, pos = _read_varint(body, pos, stop)
    key, pos = _bytes(body, pos, stop)
    try:
        value, pos = _bytes(body, pos, stop)
        headers = read_headers(body, pos, stop)
        offset, timestamp = _place(head, later, delta, between)
    except _Broken as why:
        why.key = key
        raise
    return offset, timestamp, key, value, headers


def _place(head: Head, later: int, delta: int, between: tuple[int, int]) -> tuple[int, int]:
    """Offset and timestamp."""
    before, most = between
    if not before < head.base + delta <= most:
        raise _Broken(f"it says that its offset is {head.base + delta}; it lies in {before + 1} to {most}")
    timestamp = head.max_timestamp if head.attributes & LOG_APPEND_TIME else head.first_timestamp + later
    return head.base + delta, (timestamp + _INT64) % (2 * _INT64) - _INT64  # as in other languages


def read_headers(body: bytes, pos: int, stop: int) -> Headers:
    """Headers after their number, between two places. Raises ValueError."""
    number, pos = _read_varint(body, pos, stop)
    if not 0 <= number <= MAX_HEADERS:
        raise _Broken(f"it says that it has {number} headers; {MAX_HEADERS} are read at most")
    headers = []
    for _ in range(number):
        name, pos = _bytes(body, pos, stop)
        value, pos = _bytes(body, pos, stop)
        if name is None:
            raise _Broken("a header has no name")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError as error:
            raise _Broken(f"the name of a header is not UTF-8: {name[:64]!r}") from error
    if pos != stop:
        raise _Broken(f"{stop - pos} bytes are left over at its end")
    return headers  # type: ignore[return-value]  # a header's value may be None, as in any record


def _bytes(body: bytes, pos: int, stop: int) -> tuple[bytes | None, int]:
    size, pos = _read_varint(body, pos, stop)
    if size < 0:  # any, as for Kafka's own client
        return None, pos
    if size > stop - pos:
        raise _Broken(f"a part of it says that it has {size} bytes, and there are {stop - pos}")
    return body[pos : pos + size], pos + size


def _read_varint(body: bytes, pos: int, stop: int) -> tuple[int, int]:
    """A zigzag number and the place after it."""
    value = shift = 0
    while pos < stop and shift < 64:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise _Broken("a number in it has no end")


# -- before version 2 -------------------------------------------------------------------------------------


def _legacy(tp: TP, raw: bytes) -> Record:
    """A message of version 0 or 1, which has no headers. One that is compressed holds several, in the place
    of the last one; it is not opened.
    """
    offset, magic = OFFSET.unpack_from(raw)[0], raw[MAGIC_AT]
    if magic > 1:
        why = f"its format is {magic}, and its length {len(raw)}"
        return damaged_batch(tp, raw, offset, offset, -1, why)
    if raw[MAGIC_AT + 1] & CODEC:
        why = f"it is compressed in the old message format {magic}"
        return damaged_batch(tp, raw, offset, offset, -1, why)
    begin = MAGIC_AT + 2 + (OFFSET.size if magic else 0)
    try:
        timestamp = OFFSET.unpack_from(raw, MAGIC_AT + 2)[0] if magic and len(raw) >= begin else -1
        key, pos = _legacy_bytes(raw, begin)
        value, _ = _legacy_bytes(raw, pos, is_last=True)
    except _Broken as broken:
        return damaged_batch(tp, raw, offset, offset, -1, str(broken))
    return Plain(*tp, offset, timestamp, key, value, ())


def _legacy_bytes(raw: bytes, pos: int, *, is_last: bool = False) -> tuple[bytes | None, int]:
    if len(raw) - pos < LENGTH.size:
        raise _Broken("it is cut off")
    (size,) = LENGTH.unpack_from(raw, pos)
    pos += LENGTH.size
    left = len(raw) - pos
    if size > left or (is_last and max(size, 0) < left):
        raise _Broken(f"a part of it says that it has {size} bytes, and there are {left}")
    return (None, pos) if size < 0 else (raw[pos : pos + size], pos + size)
