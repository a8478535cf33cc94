"""Decodes record batches and separates damaged records from intact ones.

Does no I/O, and is compiled with the hot path. Damaged contents become `Damaged` records instead of errors.
Supports message format 2, and formats 0 and 1 without compression:
https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from mypy_extensions import i64

from streams.kafka.records.decompression import CannotOpen, decompressed
from streams.kafka.records.heads import (
    CODEC,
    HEADER,
    LENGTH,
    LOG_APPEND_TIME,
    MAGIC_AT,
    OFFSET,
    Head,
    head_of,
)
from streams.ports import TP, Damaged, Headers, OwnRecord, Record

#: Bytes of the smallest record after its length: attributes, two deltas, three lengths.
_SMALLEST: Final = 6
#: Most headers that a record may have. In memory, a header takes fifty times its two bytes on disk.
MAX_HEADERS: Final = 1000
#: Compiled code does not allocate an object for numbers up to this one.
_SURE: Final = 1 << 60
_INT64_MOST: Final = (1 << 63) - 1
#: Limits of one `BatchRecords.take`: number of records, and bytes within which they must begin.
_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 1 << 16

#: Values of `Damaged.form`.
BATCH: Final = "record batch"
REST: Final = "records of a batch"
RECORD: Final = "record"


class Plain(NamedTuple):
    """An intact record; see `ports.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def damaged_batch(tp: TP, raw: bytes, base: int, last: int, timestamp: int, why: str) -> Damaged:
    """A `Damaged` for a whole batch. It has the batch's last offset, so that a reader continues after it."""
    text = f"the record batch of offsets {base} to {last} of {tp.topic}[{tp.partition}] cannot be read: {why}"
    return Damaged(*tp, last, timestamp, None, raw, (), BATCH, text)


Fields = tuple[str, int, int, int, bytes | None, bytes | None, Headers]
#: A NamedTuple's constructor is a slow Python function; these are not. aiokafka's `ConsumerRecord` is slower,
#: too, and takes twice the memory.
_own: Final[Callable[[Fields], Record]] = partial(tuple.__new__, OwnRecord)
_plain: Final[Callable[[Fields], Record]] = partial(tuple.__new__, Plain)


def read_batch(tp: TP, raw: bytes, limit: int) -> Iterator[Record]:
    """The records of a batch with a right checksum, in order of their offsets, which are all different.
    `limit` is the largest decompressed size in bytes.
    """
    head = head_of(raw)
    if head is None:
        yield _legacy(tp, raw)
        return
    try:
        records = BatchRecords(tp, head, *opened(head, raw, limit), head.last, own=False)
    except CannotOpen as error:
        yield damaged_batch(tp, raw, head.base, head.last, head.max_timestamp, str(error))
        return
    while found := records.take():
        yield from found


def opened(head: Head, raw: bytes, limit: int) -> tuple[bytes, int]:
    """The decompressed records of a batch, and their start in these bytes. Raises CannotOpen."""
    if not head.codec or len(raw) == HEADER.size:
        return raw, HEADER.size
    return decompressed(head.codec, raw[HEADER.size :], limit), 0


class BatchRecords:
    """The records of an opened batch. A damaged record gets the offset after the record before it. If the
    rest of a batch is unreadable, one `Damaged` at the last offset stands for it.
    """

    def __init__(self, tp: TP, head: Head, body: bytes, pos: int, last: int, *, own: bool) -> None:
        """`body` and `pos` come from `opened`; `last` is the batch's last offset. With `own`, the records are
        returned as `OwnRecord`.
        """
        self._topic, self._partition = tp
        self._head = head
        self._body = body
        self._end: i64 = len(body)
        self._pos: i64 = pos
        self._base: i64 = head.base
        self._first: i64 = head.first_timestamp
        self._last: i64 = max(min(last, _INT64_MOST), -_INT64_MOST)
        self._at: i64 = self._base - 1
        self._number: i64 = 0
        self._most: i64 = max(min(head.records, last - head.base + 1), 0)
        self._appended = bool(head.attributes & LOG_APPEND_TIME)
        self._make = _own if own else _plain
        self._headers = HeaderReader()

    def take(self) -> list[Record]:
        """A few of the next records, because in memory they take several times their bytes. Returns an empty
        list at the end.
        """
        found: list[Record] = []
        until = min(self._end, self._pos + _BYTES_AT_ONCE)
        while self._pos < until and len(found) < _AT_ONCE:
            self._number += 1
            try:
                stop = self._frame()
            except _Broken as why:
                found.append(self._rest(self._body[self._pos :], str(why)))
                break
            found.append(self._record(stop))
            self._pos = stop
        if not found and self._number < self._most:
            text = f"the batch says that it has {self._head.records} records, and has {self._number}"
            found.append(self._rest(b"", text))
        return found

    def _rest(self, raw: bytes, why: str) -> Damaged:
        begin = self._at + 1
        self._pos, self._number = self._end, self._most
        topic, partition, last = self._topic, self._partition, self._last
        text = f"the records from offset {begin} to {last} of {topic}[{partition}] cannot be read: {why}"
        return Damaged(topic, partition, last, self._head.max_timestamp, None, raw, (), REST, text)

    def _frame(self) -> i64:
        """The position where the next record ends."""
        size, begin = _read_varint(self._body, self._pos, self._end)
        left = self._end - begin
        if size < _SMALLEST or size > left:
            raise _Broken(f"a record says that it has {size} bytes, and there are {left}")
        if self._number > self._most:
            raise _Broken("the batch says that it has none")
        if self._number == self._most and size < left:
            raise _Broken(f"{left - size} bytes are left over behind the last record")
        return begin + size

    def _record(self, stop: i64) -> Record:
        """The next record, which ends at `stop`."""
        body = self._body
        key: bytes | None = None
        try:
            _, pos = _read_varint(body, self._pos, stop)  # its length, which `stop` already accounts for
            later, pos = _read_varint(body, pos + 1, stop)  # skips a byte of attributes, which are unused
            delta, pos = _read_varint(body, pos, stop)
            key, pos = read_sized(body, pos, stop)
            value, pos = read_sized(body, pos, stop)
            headers = self._headers.read(body, pos, stop)
            offset = self._offset(delta)
        except _Broken as why:
            self._at += 1
            topic, partition, raw = self._topic, self._partition, body[self._pos : stop]
            text = f"the record at offset {self._at} of {topic}[{partition}] cannot be read: {why}"
            when = self._head.max_timestamp
            return Damaged(topic, partition, self._at, when, key, raw, (), RECORD, text)
        self._at = offset
        timestamp = self._head.max_timestamp if self._appended else _sum(self._first, later)
        return self._make((self._topic, self._partition, offset, timestamp, key, value, headers))

    def _offset(self, delta: i64) -> i64:
        most = self._last - (self._most - self._number)  # each later record needs an offset, too
        if not self._at - self._base < delta <= most - self._base:
            offset = self._base + delta
            raise _Broken(f"it says that its offset is {offset}; it lies in {self._at + 1} to {most}")
        return self._base + delta


class _Broken(ValueError):
    """The bytes are not a valid record; the text says why."""


def _sum(first: i64, later: i64) -> int:
    """The sum, wrapped at 64 bits as in Java. Compiled code wraps by itself."""
    found = first + later
    return found if -_SURE <= found <= _SURE else _wrapped(found)


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class HeaderReader:
    """Reads headers, and caches their names: the next record mostly has the same names in the same order."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._raw: list[bytes] = []

    def read(self, body: bytes, pos: i64, stop: i64) -> Headers:
        """Read a header count and the headers, which must end exactly at `stop`. Raises ValueError."""
        number, pos = _read_varint(body, pos, stop)
        if not 0 <= number <= MAX_HEADERS:
            raise _Broken(f"it says that it has {number} headers; {MAX_HEADERS} are read at most")
        headers: list[tuple[str, bytes | None]] = []
        for place in range(number):
            name, pos = read_sized(body, pos, stop)
            value, pos = read_sized(body, pos, stop)
            if place >= len(self._raw) or name != self._raw[place]:
                self._keep(place, name)
            headers.append((self._names[place], value))
        if pos != stop:
            raise _Broken(f"{stop - pos} bytes are left over at its end")
        return tuple(headers)  # type: ignore[arg-type]  # a header's value may be None, as in any record

    def _keep(self, place: int, name: bytes | None) -> None:
        if name is None:
            raise _Broken("a header has no name")
        try:
            self._names[place:] = [name.decode()]
        except UnicodeDecodeError as error:
            raise _Broken(f"the name of a header is not UTF-8: {name[:64]!r}") from error
        self._raw[place:] = [name]


def read_sized(body: bytes, pos: i64, stop: i64) -> tuple[bytes | None, i64]:
    """Read a length and that many bytes. Returns the bytes and the position after them. Raises ValueError."""
    size: i64 = body[pos] if pos < stop else 0x80
    if size < 0x80:  # most are short
        size, pos = (size >> 1) ^ -(size & 1), pos + 1
    else:
        size, pos = _read_varint(body, pos, stop)
    if size < 0:  # any negative length means None, as in Kafka's own client
        return None, pos
    if size > stop - pos:
        raise _Broken(f"a part of it says that it has {size} bytes, and there are {stop - pos}")
    end = pos + size
    return body[pos:end], end


def _read_varint(body: bytes, pos: i64, stop: i64) -> tuple[i64, i64]:
    """A 64-bit zigzag number and the position after it."""
    value: i64 = 0
    shift: i64 = 0
    while pos < stop and shift < 64:
        byte: i64 = body[pos]
        pos += 1
        if shift == 63:  # only one bit is left; other clients drop the others, too
            byte &= 0x81
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            half = value >> 1
            if value < 0:
                half &= _INT64_MOST
            return half ^ -(value & 1), pos
        shift += 7
    raise _Broken("a number in it has no end")


# -- before version 2 -------------------------------------------------------------------------------------


def _legacy(tp: TP, raw: bytes) -> Record:
    """A message of format 0 or 1, which has no headers. A compressed one contains several messages at the
    last one's offset; it is not opened.
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
