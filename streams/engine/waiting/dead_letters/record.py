"""Copies of messages that failed: the original bytes, key and headers, unchanged, and why it failed. A dead
letter's for its topic, and one for a retry topic.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import PurePath
from types import FrameType

from streams.engine.staging.arrival import Arrival
from streams.errors import NotCommittable, text_of
from streams.model.envelope import record_size, rfc3339
from streams.ports import Damaged, Outgoing, Record

#: A stack trace in a header must not push the message over the broker's limit (docs/guarantee.md).
MAX_TRACE_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 1024
#: What a dead letter may take beyond the limit of other records: what says why it is one.
ROOM = MAX_TRACE_BYTES + MAX_MESSAGE_BYTES + 4096
#: Of the room that dead letter topics have, what names and frames of headers may take.
ROOM_FOR_HEADERS = 2048
#: Says that value and headers are not in the dead letter, and how many bytes the record had.
OMITTED = "dlq-omitted-bytes"
#: Says that the value is not a record's, but the bytes of something that cannot be read, and what they are.
RAW = "dlq-raw"

_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def message_bytes(error: BaseException) -> bytes:
    """The text of an error, for a header."""
    return text_of(error).encode("utf-8", "replace")[:MAX_MESSAGE_BYTES]


def dead_letter(
    record: Record,
    error: BaseException,
    *,
    group: str,
    handler: str,
    now: float,
    limit: int,
    retries: int = 0,
) -> Outgoing:
    """The record as it came, with `dlq-*` headers added. `now` in epoch seconds; `handler` may be empty.

    A record that was compressed can have more than `limit` bytes, which no topic of ours would take. Its
    value and headers are left out then, as where the broker refuses the letter with them; they are in the
    source topic, at the offset that is named here.
    """
    trace = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-MAX_TRACE_BYTES:]
    added = [
        ("dlq-error-type", type(error).__name__.encode()),
        ("dlq-error-message", message_bytes(error)),
        ("dlq-stack-trace", trace),
        ("dlq-retry-count", b"%d" % retries),
        ("dlq-failed-at", rfc3339(now).encode()),
        ("dlq-source-topic", record.topic.encode()),
        ("dlq-source-partition", b"%d" % record.partition),
        ("dlq-source-offset", b"%d" % record.offset),
        ("dlq-consumer-group", group.encode()),
        ("dlq-handler", handler.encode()),
        ("dlq-original-timestamp", b"%d" % record.timestamp),
    ]
    if isinstance(record, Damaged):
        added.append((RAW, record.form.encode()))
    size = record_size(record.key, record.value, record.headers)
    if omits(size, error, limit):
        return Outgoing((record.key or b"")[:limit], None, [*added, (OMITTED, b"%d" % size)])
    return Outgoing(record.key, record.value, [*record.headers, *added])


def retry_copy(arrival: Arrival, error: BaseException, due: float) -> Outgoing:
    """The record as it came, with `retry-*` headers added, for people. The lane retries from the waiting row,
    which is in the same transaction. `due` in epoch seconds.
    """
    record, handler = arrival.record, arrival.handler
    added = [
        ("retry-service", handler.name.partition(".")[0].encode()),
        ("retry-handler", handler.name_bytes),
        ("retry-attempt", b"%d" % arrival.attempt.tries),
        ("retry-due", rfc3339(due).encode()),
        ("retry-error-type", type(error).__name__.encode()),
        ("retry-error-message", message_bytes(error)),
        ("retry-source-partition", b"%d" % record.partition),
        ("retry-source-offset", b"%d" % record.offset),
    ]
    return Outgoing(record.key, record.value, [*record.headers, *added])


def omits(size: int, error: BaseException, limit: int) -> bool:
    """Whether a letter goes without its record's value and headers, which have `size` bytes with its key."""
    return size > limit + ROOM_FOR_HEADERS or (isinstance(error, NotCommittable) and error.omit)


def place_of(error: BaseException) -> str:
    """Where an error was raised: the innermost frame that is no library's; empty when it never was."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [pair for pair in frames if not pair[0].f_code.co_filename.startswith((*_LIBRARIES, "<"))]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    return f"{_file_of(frame)}:{line} {frame.f_code.co_name}"


def _file_of(frame: FrameType) -> str:
    """A file by its place among the packages, the same on every machine."""
    depth = str(frame.f_globals.get("__name__", "")).count(".") + 1
    return "/".join(PurePath(frame.f_code.co_filename).parts[-depth:])
