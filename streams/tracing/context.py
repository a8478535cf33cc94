"""W3C Trace Context: what a `traceparent` header says, and how one is written."""

from __future__ import annotations

import re
from hashlib import blake2b
from random import getrandbits
from typing import NamedTuple
from zlib import crc32

#: A version, a trace, a span in it, flags; what follows them is for later versions than 00.
_HEADER = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
#: The placeholder for the trace's id in an address.
PLACE = "{trace_id}"
#: The flag "sampled": the sender has recorded its span, so the others of the trace are recorded, too.
_SAMPLED = 1
#: The last digit of flags that say so.
_SAYS_SAMPLED = frozenset(b"13579bdf")
_CRCS = 1 << 32
#: A longer list of vendors' notes is not kept (W3C: 512 bytes are to be).
MAX_TRACESTATE = 512


class TraceContext(NamedTuple):
    """A span, as its descendants know it.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        sampled: whether it is recorded.
        state: `tracestate`, which goes along unread.
    """

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    @property
    def header(self) -> bytes:
        """As a `traceparent`."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.sampled)


def parse(header: bytes, state: bytes | None = None) -> TraceContext | None:
    """The context of a `traceparent` with its `tracestate`; None for another text."""
    found = _HEADER.fullmatch(header)
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    kept = state.decode("ascii", "replace") if state is not None and len(state) <= MAX_TRACESTATE else ""
    return TraceContext(int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & _SAMPLED), kept)


def trace_at(url: str, trace_id: str) -> str:
    """Where a trace is looked at: `url` with its id in the place of `{trace_id}`. Empty for what is no id:
    anybody may have written it.
    """
    return url.replace(PLACE, trace_id) if _TRACE_ID.fullmatch(trace_id) else ""


def says_unsampled(header: bytes) -> bool:
    """Whether a header, if it is one of version 00, says that its trace is not recorded. Faster than `parse`:
    most messages have such a header, or none.
    """
    return len(header) == 55 and header[54] not in _SAYS_SAMPLED


def is_chosen(correlation: bytes, ratio: float) -> bool:
    """Whether messages of a correlation id are among the part that is recorded, where no caller has decided.
    All workers choose alike: what is not recorded needs no header that says so.
    """
    return crc32(correlation) < ratio * _CRCS


def trace_id_of(identity: bytes) -> int:
    """The trace of a message that came without one: the same whenever it is handled."""
    return int.from_bytes(blake2b(identity, digest_size=16).digest(), "big") or 1


def new_trace_id() -> int:
    """The context of a trace that begins here."""
    return getrandbits(128) or 1


def new_span_id() -> int:
    """The context of a span."""
    return getrandbits(64) or 1
