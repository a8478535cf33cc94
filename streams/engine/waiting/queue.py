"""Queues of waiting messages: one for each handler and ordering key, in order of arrival (docs/adr/0009). A
queue is an immutable value. This module has its encoding, and functions that return a changed queue.
`Waiting` stages it.

The head of a queue is tried when it is due. The messages behind it wait until it has succeeded or was given
up. Queues and their messages are rows in the lane's changelog, staged with the cause of the wait, so a crash
loses none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from streams.engine.staging.arrival import Arrival, Head
from streams.engine.staging.changes import Change
from streams.engine.staging.entry import size_of
from streams.engine.staging.keys import (
    PLACE,
    QUEUE,
    WAITING,
    time_key,
)
from streams.engine.waiting.dead_letters.row import capped
from streams.errors import text_of
from streams.model.layout import LANE
from streams.model.row_keys import row_key
from streams.ports import Headers, Record

#: Maximum bytes of an error that is kept with a queue, for people.
MAX_ERROR_BYTES = 200


class Reason(StrEnum):
    """Why the head of a queue waits."""

    RETRY = "retry"  # its handler failed; it is tried again later
    REPLAY = "replay"  # an operator requested a replay
    BREAKER = "breaker"  # the handler's circuit breaker is open
    PAUSED = "paused"  # it came while the handler was paused
    NEXT = "next"  # it only waits for its turn
    SCHEMA = "schema"  # its schema is not announced yet; due when that has taken too long
    DEAD = "dead"  # it is a dead letter, and the handler's policy holds later messages back


#: Reasons to wait for something other than time. Each has its own part of the due index.
APART = (Reason.PAUSED, Reason.SCHEMA)
#: Set in the number of a replay.
REPLAYED = 1 << 63


class WaitingQueue(msgspec.Struct, array_like=True, frozen=True):
    """The messages of one ordering key that wait for one handler: first replays, in the order in which they
    were requested, then other messages, in order of arrival.

    Attributes:
        reason: why its head waits.
        due_ms: when its head is tried, in epoch milliseconds; 0: not before something else happens.
        first: number of the first message that is not a replay; messages are numbered as they come.
        next: number of the message that comes next.
        bytes: bytes of all messages in the queue.
        attempts: how often the head was tried.
        first_replay, next_replay: the same numbers for replays, which are numbered separately.
        behind: reason, due_ms and attempts of message `first`, while replays come before it.
        tried_ms: when the head was tried last, in epoch milliseconds; 0: not since it became the head.
        gaps: numbers of replays after the first one that were removed out of order.
        error: why the head failed last, at most MAX_ERROR_BYTES; empty: it has not since it became the head.
    """

    reason: Reason
    due_ms: int
    first: int
    next: int
    bytes: int
    attempts: int
    first_replay: int = 0
    next_replay: int = 0
    behind: tuple[Reason, int, int] | None = None
    tried_ms: int = 0
    gaps: tuple[int, ...] = ()
    error: str = ""

    @property
    def length(self) -> int:
        """Number of messages in the queue."""
        return self.next - self.first + self.replays

    @property
    def holds_back(self) -> bool:
        """Whether the first message that is not a replay is a dead letter, which holds the others back."""
        return Reason.DEAD in (self.reason, *(self.behind or ())[:1])

    @property
    def waits(self) -> int:
        """Number of messages that wait for the handler, without a dead letter that holds the others back."""
        return self.length - self.holds_back

    @property
    def replays(self) -> int:
        """Number of replays in the queue."""
        return self.next_replay - self.first_replay - len(self.gaps)

    @property
    def head(self) -> int:
        """The number of the message that is tried next. A replay's number has REPLAYED set."""
        return REPLAYED | self.first_replay if self.replays else self.first

    @property
    def newest_replay(self) -> int:
        """The number of the last replay. There must be one."""
        return REPLAYED | (self.next_replay - 1)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the first message that is not a replay, if there is one, and of all replays."""
        gaps = frozenset(self.gaps)
        replays = [REPLAYED | n for n in range(self.first_replay, self.next_replay) if n not in gaps]
        return [self.first, *replays] if self.next > self.first else replays


class WaitingMessage(msgspec.Struct, array_like=True, frozen=True):
    """A waiting message as it came in; see `ports.Record`. `letter`: whether it has a row among the dead
    letters. `since_ms`: when it began to wait, in epoch milliseconds; 0: an earlier version did not store it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    letter: bool = False
    since_ms: int = 0

    @property
    def waits_since(self) -> float:
        """When it began to wait, in epoch seconds; if that is unknown, when it was written."""
        return (self.since_ms or self.timestamp) / 1000

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return size_of(self)


# -- as rows --------------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_decode_queue = msgspec.msgpack.Decoder(WaitingQueue).decode
_decode_waiting = msgspec.msgpack.Decoder(WaitingMessage).decode


def queue_name(handler: bytes, key: bytes, order: bytes = b"") -> bytes:
    """The identity of a queue within its partition. `order` is what the handler orders by within a key."""
    return handler + b"\0" + row_key(key, order)


def handler_of(name: bytes) -> bytes:
    """The handler of a queue, from its name."""
    return name.partition(b"\0")[0]


@cache
def index_prefix(handler: bytes, apart: Reason | None = None) -> bytes:
    """The prefix of a handler's keys in the due index. Each handler's queues lie together in order of time,
    so that a handler with an open breaker costs nothing. Queues with a reason in APART have a part of their
    own, so that a drain need not skip them.
    """
    return blake2b(handler, digest_size=8, person=b"" if apart is None else apart.encode()).digest()


def due_until(now: float) -> bytes:
    """The end of a handler's index entries that are due at `now` (epoch seconds), without the prefix."""
    return time_key(int(now * 1000) + 1)


def message_of(record: Record, now_ms: int, *, letter: bool = False) -> WaitingMessage:
    """A record in the form in which it waits. If it waited before, it keeps the time when it began. Only a
    source's record may have no key or no value: another one would be a dead letter already.
    """
    headers: Headers = record.headers
    # Not later than now: the clock may have been ahead when it began to wait.
    since_ms = min(record.since_ms, now_ms) if isinstance(record, WaitingMessage) else now_ms
    return WaitingMessage(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        [(name, value or b"") for name, value in headers],
        letter,
        since_ms,
    )


def place_of(name: bytes, queue: WaitingQueue) -> bytes:
    """The place of a queue in the due index: 16 bytes."""
    apart = queue.reason if queue.reason in APART else None
    return index_prefix(handler_of(name), apart) + time_key(queue.due_ms)


def set_queue(name: bytes, queue: WaitingQueue | None) -> Change:
    """The change of a queue; None removes it. Its value begins with its place in the due index."""
    if queue is None:
        return Change(LANE, QUEUE + name, None)
    return Change(LANE, QUEUE + name, place_of(name, queue) + _encode(queue), queue)


def set_message(name: bytes, number: int, message: WaitingMessage | None) -> Change:
    """The change of a waiting message; None removes it."""
    key = WAITING + name + number.to_bytes(8, "big")
    return Change(LANE, key, None if message is None else encode_message(message), message)


def read_queue(data: bytes) -> WaitingQueue:
    """A queue from the value of its row."""
    return _decode_queue(data[PLACE:])


def read_message(data: bytes) -> WaitingMessage:
    """A waiting message from the value of its row."""
    return _decode_waiting(data)


def encode_message(message: WaitingMessage) -> bytes:
    """The value of a waiting message's row."""
    return _encode(message)


# -- how it changes -------------------------------------------------------------------------------------


def ms(seconds: float) -> int:
    """Seconds as milliseconds, rounded up, so that nothing is early."""
    return math.ceil(seconds * 1000)


def error_text(error: BaseException | None) -> str:
    """An error as text to keep with a queue; empty for None."""
    return "" if error is None else capped(f"{type(error).__name__}: {text_of(error)}", MAX_ERROR_BYTES)


def begin(
    reason: Reason, *, due_ms: int, attempts: int, size: int, tried_ms: int = 0, error: str = ""
) -> WaitingQueue:
    """A new queue with one message of `size` bytes."""
    return WaitingQueue(reason, due_ms, 0, 1, size, attempts, tried_ms=tried_ms, error=error)


def append(queue: WaitingQueue, size: int) -> WaitingQueue:
    """Add a message of `size` bytes behind the others."""
    return replace(queue, next=queue.next + 1, bytes=queue.bytes + size)


def postpone(
    queue: WaitingQueue, reason: Reason, *, due_ms: int, attempts: int, tried_ms: int = 0, error: str = ""
) -> WaitingQueue:
    """Let the head wait until `due_ms`; 0: until something else happens."""
    return replace(queue, reason=reason, due_ms=due_ms, attempts=attempts, tried_ms=tried_ms, error=error)


def advance(queue: WaitingQueue, size: int, now_ms: int) -> WaitingQueue | None:
    """Remove the head, of `size` bytes, so that the next message becomes the head. None: none is left."""
    if queue.length == 1:
        return None
    queue = replace(queue, bytes=_less(queue.bytes, size))
    if not queue.replays:
        return postpone(replace(queue, first=queue.first + 1), Reason.NEXT, due_ms=now_ms, attempts=0)
    first = queue.first_replay + 1
    while first in queue.gaps:
        first += 1
    gaps = tuple(number for number in queue.gaps if number > first)
    queue = replace(queue, first_replay=first, gaps=gaps)
    if queue.replays:
        return postpone(queue, Reason.REPLAY, due_ms=now_ms, attempts=0)
    reason, due_ms, attempts = queue.behind or (Reason.NEXT, now_ms, 0)
    return postpone(replace(queue, behind=None), reason, due_ms=due_ms, attempts=attempts)


def replayed(queue: WaitingQueue | None, size: int, now_ms: int) -> WaitingQueue:
    """Insert a replay of `size` bytes before messages that are not replays, behind earlier replays."""
    if queue is None:
        return WaitingQueue(Reason.REPLAY, now_ms, 0, 0, size, 0, 0, 1)
    more = replace(queue, next_replay=queue.next_replay + 1, bytes=queue.bytes + size)
    if queue.replays:
        return more
    behind = (queue.reason, queue.due_ms, queue.attempts)
    return postpone(replace(more, behind=behind), Reason.REPLAY, due_ms=now_ms, attempts=0)


def woken(queue: WaitingQueue, number: int, grown: int, now_ms: int) -> WaitingQueue:
    """Replay the dead letter that holds the queue, given by its number. It has `grown` by so many bytes."""
    queue = replace(queue, bytes=queue.bytes + grown)
    if number == queue.head:
        return postpone(queue, Reason.REPLAY, due_ms=now_ms, attempts=0)
    return replace(queue, behind=(Reason.REPLAY, now_ms, 0))


def released(queue: WaitingQueue, number: int, size: int, now_ms: int) -> WaitingQueue | None:
    """Remove a replay, or the first other message, given by its number. None: no message is left."""
    if number == queue.head:
        return advance(queue, size, now_ms)
    queue = replace(queue, bytes=_less(queue.bytes, size))
    if number & REPLAYED:
        return replace(queue, gaps=(*queue.gaps, number ^ REPLAYED))
    behind = None if queue.next - queue.first == 1 else (Reason.NEXT, now_ms, 0)
    return replace(queue, first=queue.first + 1, behind=behind)


def _less(total: int, size: int) -> int:
    return max(0, total - size)  # earlier versions did not count headers in the total


def within_policy(queue: WaitingQueue, now_ms: int, longest_ms: Callable[[Reason], int]) -> WaitingQueue:
    """Correct the times of a queue that were written by a clock ahead of `now_ms`. A queue with possible
    times is returned as it is. `longest_ms` returns the longest wait of a head for a reason.
    """
    longest = longest_ms(queue.reason)
    if queue.tried_ms > now_ms:  # a clock that was ahead wrote both times
        longest = min(longest, max(0, queue.due_ms - queue.tried_ms))
    behind = queue.behind
    if behind is not None:
        behind = (behind[0], min(behind[1], now_ms + longest_ms(behind[0])), behind[2])
    due_ms, tried_ms = min(queue.due_ms, now_ms + longest), min(queue.tried_ms, now_ms)
    return replace(queue, due_ms=due_ms, tried_ms=tried_ms, behind=behind)


class Placed(NamedTuple):
    """The result of putting a message in a queue: the queue with it, and the rows that change."""

    queue: WaitingQueue
    rows: list[Change]


def put_in(
    queue: WaitingQueue | None,
    name: bytes,
    arrival: Arrival,
    reason: Reason,
    due: float,
    now: float,
    *,
    is_head: bool,
    error: BaseException | None,
) -> Placed:
    """Let a message wait in the queue `name`: again as the head, as the first message of a new queue, or
    behind all others. A replay comes before all messages that are not replays, as if its ordering key had
    been known from the start. `reason` and `due` (epoch seconds) apply to a head. `error` is what its handler
    has raised now, if anything.
    """
    is_dead, now_ms = reason is Reason.DEAD, ms(now)
    is_replay = isinstance(arrival, Head) and arrival.is_replay
    message = message_of(arrival.record, now_ms, letter=is_replay or is_dead)
    tried_ms, text = 0 if error is None else now_ms, error_text(error)
    due_ms, tries, size = ms(due), arrival.attempt.tries, message.size
    if queue is not None and is_head:
        after = postpone(queue, reason, due_ms=due_ms, attempts=tries, tried_ms=tried_ms, error=text)
        number = after.head
    elif queue is None:
        after = begin(reason, due_ms=due_ms, attempts=tries, size=size, tried_ms=tried_ms, error=text)
        number = after.first
    elif is_replay or is_dead:
        after = replayed(queue, size, now_ms)
        number = after.newest_replay
    else:
        after, number = append(queue, size), queue.next
    rows = [set_queue(name, after)]
    if not is_head or is_dead or _since(arrival.record) > message.since_ms:  # else its row does not change
        rows.append(set_message(name, number, message))
    return Placed(after, rows)


def _since(record: Record) -> int:
    return record.since_ms if isinstance(record, WaitingMessage) else 0
