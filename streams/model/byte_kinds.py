"""What bytes that could not be decoded look like, for the error: JSON, or a value in Confluent's frame."""

from __future__ import annotations

import msgspec

#: Description of JSON.
JSON = "looks like JSON"
#: Longer values are not parsed for a guess: anybody may send them, and parsing takes time.
LOOKED_AT = 1 << 20
#: What objects and arrays begin with, in most cases.
_BEGINNINGS = (b'{"', b"{}", b'["', b"[{", b"[[", b"[]")
#: A zero byte and four bytes of a schema id; ids begin at 1.
_FRAME_SIZE = 5


def look_of(data: bytes) -> str:
    """The end of a sentence about bytes: "looks like JSON", "has no bytes". Of unknown bytes it gives the
    first eight.
    """
    if not data:
        return "has no bytes"
    if schema_id := _confluent_id(data):
        return (
            f"starts with 0 and schema id {schema_id}: Confluent's frame, which is not read here; send the"
            " value without it"
        )
    return JSON if is_json(data) else f"starts with {data[:8]!r}"


def is_json(data: bytes) -> bool:
    """Whether bytes are JSON, or begin like an object or array of it."""
    return data.lstrip()[:2] in _BEGINNINGS or _decodes(data)


def is_other(data: bytes) -> bool:
    """Whether bytes are in Confluent's frame or JSON, so that they are hardly an Avro value."""
    return bool(_confluent_id(data)) or is_json(data)


def _confluent_id(data: bytes) -> int:
    return int.from_bytes(data[1:_FRAME_SIZE], "big") if data[:1] == b"\0" and len(data) >= _FRAME_SIZE else 0


def _decodes(data: bytes) -> bool:
    if len(data) > LOOKED_AT:
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
