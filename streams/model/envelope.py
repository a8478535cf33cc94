"""Ids, correlation and causation of a message: CloudEvents 1.0 in Kafka's binary mode (`ce_*` headers)."""

from __future__ import annotations

from binascii import hexlify
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import uuid_utils
from librt.strings import BytesWriter

from streams.errors import HeaderTooLong, MissingHeader, PermanentError, Unreadable
from streams.kafka.records.writing import header_bytes, sized, sized_length, write_sized, zigzag_length
from streams.ports import Damaged, Headers, Record

ID: Final = "ce_id"
TYPE: Final = "ce_type"
SOURCE: Final = "ce_source"
SUBJECT: Final = "ce_subject"
TIME: Final = "ce_time"
CORRELATION: Final = "ce_correlationid"
CAUSATION: Final = "ce_causationid"
SPEC_VERSION: Final = "ce_specversion"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
FINGERPRINT: Final = "schema-fingerprint"
EXPIRY: Final = "ce_expirytime"
WITHIN: Final = "ce_within"
TIMER_DUE: Final = "timer-due"
#: Seconds after which a timer is due that was set for a duration. It stays in the row, and is not sent.
TIMER_AFTER: Final = "timer-after"
#: The last header of a message that its lane has handled in the transaction that wrote it: the application.
LOOPBACK: Final = "loopback"

#: The first and the last time that has an RFC 3339 form, in epoch seconds.
_FIRST: Final = -62_135_596_800.0
_LAST: Final = 253_402_300_799.0

#: Maximum size in bytes of an id, a source and a correlation id. The inbox stores the id of each message, and
#: the messages that it causes carry its id and correlation id.
MAX_ID_BYTES: Final = 1024
_BOUNDED: Final[tuple[str, ...]] = (ID, SOURCE, CORRELATION)
#: Upper bound for the bytes of a record besides key, value and headers, including the batch header.
RECORD_OVERHEAD: Final = 512
#: A longer traceparent is ignored (W3C: 55 bytes, later versions may have more).
_MAX_TRACEPARENT: Final = 256
#: A longer tracestate is not passed on (W3C: at least 512 should be).
_MAX_TRACESTATE: Final = 512
#: A longer `ce_time` is ignored, because handlers store it in their rows (RFC 3339: 20 to 35 bytes).
_MAX_TIME: Final = 64

_SPEC: Final = (SPEC_VERSION, b"1.0")
#: The same and the name behind it, as records have them; and other names.
_PACKED_SPEC: Final = header_bytes(*_SPEC) + sized(CORRELATION.encode())
_PACKED_CAUSATION: Final = sized(CAUSATION.encode())
_PACKED_STATE: Final = sized(TRACESTATE.encode())
_PACKED_TRACE: Final = sized(TRACEPARENT.encode())
_DIGEST: Final = blake2b(digest_size=16)
#: Size in bytes of a batch header.
_BATCH: Final = 61


class Envelope:
    """The metadata of a message: ids, time, correlation and causation, from its record's headers.

    Attributes:
        headers: headers by name. If a name is repeated, the last one counts.
        id_bytes: the raw `ce_id`.
    """

    __slots__ = ("headers", "id_bytes", "record")

    def __init__(self, record: Record) -> None:
        """Raises MissingHeader if the record has no id, and Unreadable if it is damaged."""
        headers: dict[str, bytes] = {}
        pairs: tuple[tuple[str, Any], ...] = tuple(record.headers)  # a client's value may be None
        for name, value in pairs:
            headers[name] = value  # noqa: PERF403 - `dict` looks for the types of all, and takes twice as long
        id_bytes = headers.get(ID)
        if not id_bytes:
            raise _no_id(record)
        self.record = record
        self.headers = headers
        self.id_bytes = id_bytes

    def require_bounded(self) -> None:
        """Raises HeaderTooLong if the id, source or correlation id exceeds MAX_ID_BYTES."""
        headers = self.headers
        for name in _BOUNDED:
            data = headers.get(name)
            if data is not None and len(data) > MAX_ID_BYTES:
                raise HeaderTooLong(
                    f"its header {name} has {len(data)} bytes, the limit is {MAX_ID_BYTES}: shorten it"
                )

    def _text(self, name: str, default: str = "") -> str:
        data = self.headers.get(name)
        return default if data is None else data.decode("utf-8", "replace")

    @property
    def id(self) -> str:
        """The message's own id, unique within its source."""
        return self.id_bytes.decode("utf-8", "replace")

    @property
    def identity(self) -> bytes:
        """Source and id together: an id alone is unique within its source only."""
        source = self.headers.get(SOURCE) or b""
        return b"%d:%b%b" % (len(source), source, self.id_bytes)

    @property
    def type(self) -> str:
        """The type of the event or command; the topic if the header is missing."""
        return self._text(TYPE, self.record.topic)

    @property
    def source(self) -> str:
        """The sender's name; empty if the header is missing."""
        return self._text(SOURCE)

    @property
    def time(self) -> str:
        """The time from the header, RFC 3339; the record's timestamp if it is missing, empty or too long."""
        text = self._text(TIME)
        return text if 0 < len(text) <= _MAX_TIME else rfc3339(self.record.timestamp / 1000)

    @property
    def correlation_id(self) -> str:
        """The business operation it belongs to; its own id when it begins one."""
        return self._text(CORRELATION) or self.id

    @property
    def causation_id(self) -> str | None:
        """The id of the message it is an answer to."""
        return self._text(CAUSATION) or None

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint of the writer's schema, 16 hexadecimal digits; None where the header is missing."""
        return self.headers.get(FINGERPRINT)

    @property
    def deadline(self) -> float | None:
        """When the message expires, in epoch seconds; None: never, or the header is not readable."""
        text = self._text(EXPIRY)
        return epoch_seconds(text) if text else None

    @property
    def within(self) -> float | None:
        """For how many seconds the message is of use, from when it is taken; None: not readable."""
        try:
            return float(self._text(WITHIN, "-")) if WITHIN in self.headers else None
        except ValueError:
            return None

    def caused(self, traceparent: bytes | None = None) -> Caused:
        """The headers that every message sent in answer to this one shares. `traceparent` is that of the span
        which sends it; None: it is passed on as it came, so that a caller's trace is not cut.
        """
        headers = self.headers
        trace = headers.get(TRACEPARENT) if traceparent is None else traceparent
        if trace is not None and len(trace) > _MAX_TRACEPARENT:
            trace = None
        state = None if trace is None else headers.get(TRACESTATE)
        if state is not None and len(state) > _MAX_TRACESTATE:
            state = None
        return Caused(headers.get(CORRELATION) or self.id_bytes, self.id_bytes, trace, state)


class Caused:
    """The headers that all messages with the same cause share.

    Attributes:
        number: number of headers.
        size: total bytes of their values, without the constant `ce_specversion`.
    """

    __slots__ = ("_causation", "_correlation", "_state", "_trace", "number", "size")

    def __init__(
        self, correlation: bytes, causation: bytes, trace: bytes | None, state: bytes | None
    ) -> None:
        self._correlation = correlation
        self._causation = causation
        self._trace = trace
        self._state = state
        self.number = 3 + (trace is not None) + (state is not None)
        self.size = len(correlation) + len(causation) + len(trace or b"") + len(state or b"")

    def pairs(self) -> list[tuple[str, bytes]]:
        """The headers as pairs of name and value."""
        headers = [_SPEC, (CORRELATION, self._correlation), (CAUSATION, self._causation)]
        if self._state is not None:
            headers.append((TRACESTATE, self._state))
        if self._trace is not None:
            headers.append((TRACEPARENT, self._trace))
        return headers

    def write(self, to: BytesWriter) -> None:
        """Append the headers in the format of Kafka's records."""
        to.write(_PACKED_SPEC)
        write_sized(to, self._correlation)
        to.write(_PACKED_CAUSATION)
        write_sized(to, self._causation)
        if self._state is not None:
            to.write(_PACKED_STATE)
            write_sized(to, self._state)
        if self._trace is not None:
            to.write(_PACKED_TRACE)
            write_sized(to, self._trace)


def _no_id(record: Record) -> PermanentError:
    if isinstance(record, Damaged):
        return Unreadable(record.why)
    return MissingHeader(
        f"{record.topic} partition {record.partition} offset {record.offset} has no {ID} header"
    )


def derived_id(incoming: bytes, handler: bytes, index: int) -> bytes:
    """The id of the message that `handler` sends as its `index`-th answer to `incoming`, an envelope's
    identity.

    A rerun makes the same ids. The form is that of a UUID, version 8 (RFC 9562: free content).
    """
    digested = _DIGEST.copy()  # takes half the time of a new digest
    digested.update(b"%b\0%b\0%d" % (incoming, handler, index))
    digest = hexlify(digested.digest())
    return b"%b-%b-8%b-a%b-%b" % (digest[:8], digest[8:12], digest[13:16], digest[17:20], digest[20:])


def new_headers(
    message_type: str, key: str, *, source: str, time: float, message_id: str = "", correlation_id: str = ""
) -> list[tuple[str, bytes]]:
    """Headers of a client's message, which has no cause. `time` is in epoch seconds."""
    own_id = (message_id or str(uuid_utils.uuid7())).encode()
    return [
        _SPEC,
        (ID, own_id),
        (TYPE, message_type.encode()),
        (SOURCE, source.encode()),
        (SUBJECT, key.encode()),
        (TIME, rfc3339(time).encode()),
        (CORRELATION, correlation_id.encode() or own_id),
    ]


def rfc3339(seconds: float) -> str:
    """Epoch seconds as RFC 3339 in UTC, to the millisecond. Clients can send any time, so times outside
    the years 1 to 9999 become the nearest within, and NaN becomes 1970.
    """
    seconds = min(max(seconds, _FIRST), _LAST) if seconds == seconds else 0.0  # NaN is not equal to itself
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_seconds(text: str) -> float | None:
    """Epoch seconds of an RFC 3339 text; None if it is not a time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def headers_size(headers: Headers) -> int:
    """Bytes that headers take in a record, as brokers count them."""
    pairs: Any = headers  # a client's may be None, which compiled code takes for no bytes else
    return zigzag_length(len(headers)) + sum(
        sized_length(name.encode()) + sized_length(value) for name, value in pairs
    )


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Uncompressed size of a batch with this record only, which brokers compare with `max.message.bytes`."""
    # First one byte each of attributes, and of two distances, which are 0.
    body = 3 + sized_length(key) + sized_length(value) + headers_size(headers)
    return _BATCH + zigzag_length(body) + body
