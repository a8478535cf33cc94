"""Copies of failed messages for dead letter topics and retry topics: the original record, unchanged, and
headers that say why it failed.
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
#: Bytes that a dead letter may have beyond the limit of other records, for the headers about its failure.
ROOM = MAX_TRACE_BYTES + MAX_MESSAGE_BYTES + 4096
#: The part of these bytes for names and framing of headers.
ROOM_FOR_HEADERS = 2048
#: A header for a dead letter without the record's value and headers: how many bytes the record had.
OMITTED = "dlq-omitted-bytes"
#: A header for a dead letter with unreadable bytes in place of a record's value: what these bytes are.
RAW = "dlq-raw"

_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def message_bytes(error: BaseException) -> bytes:
    """The text of an error for a header, at most MAX_MESSAGE_BYTES."""
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

    A record that was compressed can have more than `limit` bytes, too many for a topic of ours. Then its
    value and headers are omitted, as after the broker has refused a dead letter with them. They remain in the
    source topic, at the offset in the headers.
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
    """The record as it came, with `retry-*` headers added, for people to read. The lane retries from the
    waiting row, which is in the same transaction. `due` in epoch seconds.
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
    """Whether a dead letter omits its record's value and headers. The record has `size` bytes."""
    return size > limit + ROOM_FOR_HEADERS or (isinstance(error, NotCommittable) and error.omit)


def place_of(error: BaseException) -> str:
    """Where an error was raised: the innermost frame, outside libraries if possible. Empty: it never was."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [pair for pair in frames if not pair[0].f_code.co_filename.startswith((*_LIBRARIES, "<"))]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    return f"{_file_of(frame)}:{line} {frame.f_code.co_name}"


def _file_of(frame: FrameType) -> str:
    """A frame's file with the path from its top package on, which is the same on every machine."""
    depth = str(frame.f_globals.get("__name__", "")).count(".") + 1
    return "/".join(PurePath(frame.f_code.co_filename).parts[-depth:])
