"""The row of a dead letter: the unchanged record, why it failed, and what operators did about it since.

This module has only values and their encoding. The key of a row is the record's key, then the handler that
gave it up and the place that it came from, so a record without an id or a key has a row, too.
"""

from __future__ import annotations

import traceback
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from streams.engine.staging.keys import split_store_key, store_key
from streams.engine.waiting.dead_letters.record import MAX_MESSAGE_BYTES, MAX_TRACE_BYTES, omits, place_of
from streams.errors import Unreadable, text_of
from streams.model.envelope import TYPE, headers_size, record_size
from streams.model.row_keys import row_key, split_row_key
from streams.ports import Headers, Record

#: The first byte of a row's value.
VERSION = 1
#: More partitions than any application has: the default if no partition counts as added.
MOST_PARTITIONS = 1 << 16
#: Longer keys are hashed in the row's key, so that an id stays short enough for a URL.
MAX_KEY_IN_ID = 1024
#: Maximum events kept in a letter's row, the newest ones. The log of operations has all of them.
MAX_HISTORY = 20


class LetterState(StrEnum):
    """States of a dead letter."""

    DEAD = "dead"
    REPLAYING = "replaying"  # it waits for a new run, or runs
    PARKED = "parked"  # too many replays have failed: only a forced one runs
    DISCARDED = "discarded"


class Event(msgspec.Struct, array_like=True, frozen=True):
    """An operation on a letter by `who`, or a failed replay, at `at_ms` (epoch milliseconds)."""

    at_ms: int
    who: str
    operation: str
    why: str
    result: str


class Summary(msgspec.Struct, array_like=True, frozen=True):
    """A letter without its contents. Lists and groups decode no more of a row than this.

    Attributes:
        topic, partition, offset, timestamp, key: of the record, as it came.
        handler: the handler that gave it up; empty: none has seen it.
        message_type: the type in the record's headers, or else its topic.
        error_type, error_message: what the handler raised last.
        place: where that was raised, outside libraries if possible: `file:line function`.
        attempts: number of attempts before it became a letter the last time.
        failed_at_ms: when it became a letter first, in epoch milliseconds; its retention counts from then.
        state: see `LetterState`.
        replays: number of failed replays.
        queue: the name of the queue that it holds; empty: it holds none.
        omitted: size of the record if its value and headers are not kept; 0: they are.
        size: bytes of key, value and headers, as the record came.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    handler: str
    message_type: str
    error_type: str
    error_message: str
    place: str
    attempts: int
    failed_at_ms: int
    state: LetterState
    replays: int
    queue: bytes
    omitted: int
    size: int

    @property
    def service(self) -> str:
        """The name of its handler's service."""
        return self.handler.partition(".")[0]


class Letter(Summary, array_like=True, frozen=True):
    """A dead letter with its contents. A header's value may be None, as in any record.

    Attributes:
        edited: whether an operator has changed the message, which then has a new id.
        stamped: whether its row's key includes the timestamp, because a letter of a deleted topic has the
            same place.
        home: the partition of its row, if its record was forwarded there; -1: the record's own.
    """

    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    trace: str
    history: list[Event]
    edited: bool = False
    stamped: bool = False
    home: int = -1

    @property
    def is_raw(self) -> bool:
        """Whether its value is not a message's, but bytes that could not be read."""
        return self.error_type == Unreadable.__name__ and not self.edited

    @property
    def record(self) -> Record:
        """The letter as a record: it has all fields of one."""
        return cast("Record", self)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Letter).decode
_decode_summary = msgspec.msgpack.Decoder(Summary).decode


# -- names ------------------------------------------------------------------------------------------------


def letter_key(
    key: bytes | None,
    handler: str,
    topic: str,
    offset: int,
    added: int | None = None,
    stamp: int | None = None,
) -> bytes:
    """The changelog key of a letter's row. `added` is the record's partition, if the row is in another one,
    where records have the same offsets. `stamp` is the record's timestamp, if a letter of a deleted topic has
    the same place.
    """
    place = offset.to_bytes(8, "big") + (b"" if added is None else added.to_bytes(4, "big"))
    place += b"" if stamp is None else stamp.to_bytes(8, "big", signed=True)
    return letters_of(key or b"") + b"%b\0%b\0%b" % (handler.encode(), topic.encode(), place)


def letters_of(key: bytes) -> bytes:
    """The prefix of the changelog keys of a key's letters."""
    return row_key(blake2b(key, digest_size=16).digest() if len(key) > MAX_KEY_IN_ID else key)


def key_of(letter: Letter, partitions: int = MOST_PARTITIONS) -> bytes:
    """The changelog key of a letter's row, in an application with so many partitions."""
    added = letter.partition if letter.partition >= partitions or letter.home >= 0 else None
    stamp = letter.timestamp if letter.stamped else None
    return letter_key(letter.key, letter.handler, letter.topic, letter.offset, added, stamp)


def local_key(letter: Letter, partitions: int = MOST_PARTITIONS) -> bytes:
    """The local key of a letter's row, in an application with so many partitions."""
    home = letter.partition % partitions if letter.home < 0 else letter.home
    return store_key(home, key_of(letter, partitions))


def letter_places(record: Record, handler: str, home: int) -> list[bytes]:
    """The local keys that a handler's letter of a record may have in the `home` partition. It has the second
    one if a letter of a deleted topic has the first.
    """
    added = None if record.partition == home else record.partition
    return [
        store_key(home, letter_key(record.key, handler, record.topic, record.offset, added, stamp))
        for stamp in (None, record.timestamp)
    ]


def letter_id(local: bytes) -> str:
    """The id of a letter: its local key, encoded for URLs."""
    return urlsafe_b64encode(local).decode().rstrip("=")


def parse_id(text: str, *, within: int | None = None) -> tuple[int, bytes]:
    """The partition and changelog key of a letter, from its id. Raises ValueError if the text is not an id,
    or the letter is not in partition `within`.
    """
    local = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if letter_id(local) != text or len(local) < 4:
        raise ValueError(
            f"{text!r} is not the id of a dead letter: `steadfaust dlq list` begins each line with one"
        )
    partition, key = split_store_key(local)
    if within not in (None, partition):
        raise ValueError(f"{text!r} is of partition {partition}, not {within}")
    return partition, key


def topic_of(key: bytes) -> str:
    """The topic that a letter came from, from its changelog key."""
    _, place = split_row_key(key)
    return place.split(b"\0", 2)[1].decode()


# -- rows -------------------------------------------------------------------------------------------------


def new_letter(
    record: Record,
    error: BaseException,
    *,
    handler: str,
    attempts: int,
    now_ms: int,
    limit: int,
    queue: bytes = b"",
    home: int = -1,
) -> Letter:
    """The letter of a record that was given up. `limit` in bytes, as in `record.dead_letter`; `home` as in
    `Letter`.
    """
    headers: list[tuple[str, bytes | None]] = [(name, value) for name, value in record.headers]
    size = len(record.key or b"") + len(record.value or b"") + headers_size(record.headers)
    omit = omits(record_size(record.key, record.value, record.headers), error, limit)
    return Letter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key if record.key is None else record.key[:limit],
        handler=handler,
        message_type=_type_of(record),
        error_type=type(error).__name__,
        error_message=capped(text_of(error), MAX_MESSAGE_BYTES),
        place=place_of(error),
        attempts=attempts,
        failed_at_ms=now_ms,
        state=LetterState.DEAD,
        replays=0,
        queue=queue,
        omitted=size if omit else 0,
        size=size,
        value=None if omit else record.value,
        headers=[] if omit else headers,
        trace=capped("".join(traceback.format_exception(error))[-MAX_TRACE_BYTES:], MAX_TRACE_BYTES),
        history=[],
        home=home,
    )


def failed_again(before: Letter, again: Letter, *, now_ms: int, max_replays: int) -> Letter:
    """A letter after a failed replay. `again` is the letter that this failure alone would make."""
    replays = before.replays + 1
    event = Event(now_ms, "lane", "replay", "", f"failed again: {again.error_type}: {again.error_message}")
    return replace(
        again,
        failed_at_ms=before.failed_at_ms,
        state=LetterState.PARKED if replays >= max_replays else LetterState.DEAD,
        replays=replays,
        history=remember(before.history, event),
        edited=before.edited,
        stamped=before.stamped,
    )


def remember(history: Iterable[Event], event: Event) -> list[Event]:
    """Add an event to a history. Texts are truncated, and the oldest events dropped."""
    event = Event(
        event.at_ms,
        capped(event.who, 128),
        event.operation,
        capped(event.why, 512),
        capped(event.result, 256),
    )
    return [*history, event][-MAX_HISTORY:]


def encode_letter(letter: Letter, limit: int) -> bytes:
    """A row's value, within `limit` bytes. It begins with the version and the letter's time, for the index by
    age. To fit, it gives up most of the history first, then the trace, then value and headers.
    """
    begin = bytes([VERSION]) + letter.failed_at_ms.to_bytes(8, "big")
    giving_way: tuple[dict[str, Any], ...] = (
        {},
        {"history": letter.history[-1:]},
        {"trace": ""},
        {"value": None, "headers": [], "omitted": letter.size},
    )
    for less in giving_way:
        letter = replace(letter, **less)
        data = begin + _encode(letter)
        if len(data) <= limit:
            break
    return data


def decode_letter(data: bytes) -> Letter:
    """A letter from its row. Raises ValueError for a row of a later version."""
    return _decode(_body(data))


def decode_summary(data: bytes) -> Summary:
    """A letter from its row, without its contents. Raises ValueError for a row of a later version."""
    return _decode_summary(_body(data))


def _body(data: bytes) -> memoryview:
    if data[0] != VERSION:
        raise ValueError(f"a dead letter's row has version {data[0]}, this program knows {VERSION}")
    return memoryview(data)[9:]


# -- what it says -----------------------------------------------------------------------------------------


def capped(text: str, limit: int) -> str:
    """The beginning of a text, at most `limit` bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def _type_of(record: Record) -> str:
    headers: Headers = record.headers
    kind = dict(headers).get(TYPE)
    return capped(kind.decode("utf-8", "replace"), 256) if kind else record.topic
