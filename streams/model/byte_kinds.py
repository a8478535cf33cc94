"""Kinds of bytes that could not be decoded, in words for operators."""

from __future__ import annotations

import re

import msgspec

#: Description of JSON.
JSON = "looks like JSON"
#: More of it is not looked at: a guess may be dear, and anybody sends what they like.
LOOKED_AT = 1 << 20
#: Bytes that say of themselves what they are, by what they begin with.
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"Obj\x01", "starts with Obj1: an Avro container file, which is not read here; send one Avro value"),
    (b"\x1f\x8b", "starts with 1f8b: compressed with gzip; let the Kafka client compress instead"),
    (
        b"\x28\xb5\x2f\xfd",
        "starts with 28b52ffd: compressed with zstd; let the Kafka client compress instead",
    ),
    (b"\x04\x22\x4d\x18", "starts with 04224d18: compressed with lz4; let the Kafka client compress instead"),
    (
        b"\xff\x06\x00\x00sNaPpY",
        "starts with sNaPpY: compressed with snappy; let the Kafka client compress instead",
    ),
    (b"\x82SNAPPY\x00", "starts with SNAPPY: compressed with snappy; let the Kafka client compress instead"),
    (b"BZh", "starts with BZh: compressed with bzip2, which is not read here"),
    (b"\xfd7zXZ\x00", "starts with fd377a585a00: compressed with xz, which is not read here"),
    (b"PK\x03\x04", "starts with PK: a zip file, which is not read here"),
    (b"\xac\xed\x00\x05", "starts with aced0005: an object of Java's serialization, which is not read here"),
    (b"\xd9\xd9\xf7", "starts with d9d9f7: CBOR, which is not read here"),
    (b"PAR1", "starts with PAR1: a Parquet file, which is not read here"),
    (b"%PDF", "starts with %PDF: a PDF file, which is not read here"),
    (b"\x89PNG", "starts with 89PNG: a PNG picture, which is not read here"),
    (b"\xff\xd8\xff", "starts with ffd8ff: a JPEG picture, which is not read here"),
    (b"\xff\xfe", "starts with fffe: text in UTF-16, which is not read here; send UTF-8"),
    (b"\xfe\xff", "starts with feff: text in UTF-16, which is not read here; send UTF-8"),
    (b"\xef\xbb\xbf", "starts with efbbbf: UTF-8 with a byte order mark; send it without the mark"),
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}")
#: What objects and arrays begin with, in most cases.
_BEGINNINGS = (b'{"', b"{}", b'["', b"[{", b"[[", b"[]")
#: Versions of pickles.
_PICKLES = (b"\x02", b"\x03", b"\x04", b"\x05")
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def look_of(data: bytes) -> str:
    """The kind of some bytes, as the end of a sentence about them: "looks like JSON", "has no bytes". Of what
    is not known it says how it starts.
    """
    if not data:
        return "has no bytes"
    for signature, words in _SIGNATURES:
        if data.startswith(signature):
            return words
    return _framed(data) or _as_text(data) or _as_binary(data)


def says_its_kind(data: bytes) -> bool:
    """Whether bytes begin as another kind does, so that they are hardly an Avro value."""
    return look_of(data).startswith(("starts with", JSON))


def is_json(data: bytes) -> bool:
    """Whether bytes are JSON, or begin like an object or array of it."""
    return data.lstrip()[:2] in _BEGINNINGS or _decodes(data)


def _decodes(data: bytes) -> bool:
    if len(data) > LOOKED_AT:
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _framed(data: bytes) -> str:
    """Of a value behind the header of a schema registry, or of Avro's single objects."""
    if data.startswith(b"\xc3\x01") and len(data) >= 10:
        fingerprint = data[2:10][::-1].hex()
        return (
            f"starts with c301 and the fingerprint {fingerprint}: Avro's single-object form, which is not"
            " read here; send the fingerprint in the header schema-fingerprint, and the value alone"
        )
    advice = "which is not read here; send the value without it"
    if data[0] == 0 and len(data) >= 5 and (schema_id := int.from_bytes(data[1:5], "big")):
        return f"starts with 0 and schema id {schema_id}: Confluent's frame, {advice}"
    if data[0] == 0 and len(data) >= 9 and (schema_id := int.from_bytes(data[1:9], "big")):
        return f"starts with 0 and schema id {schema_id} in 8 bytes: Apicurio's frame, {advice}"
    if data[0] == 3 and len(data) >= 18 and data[1] in (0, 5):
        return f"starts with 3 and schema version {data[2:18].hex()}: the frame of AWS Glue, {advice}"
    return ""


def _as_text(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError:
        return "looks like the beginning of JSON with other bytes in it" if data[:2] in (b'{"', b'["') else ""
    if is_json(data):
        return JSON
    if data.lstrip()[:1] == b"<":
        return "looks like XML or HTML"
    if _CONTROLS.search(data):
        return ""
    if _BASE64.fullmatch(data.strip()):
        return "looks like text in base64"
    return "looks like text in UTF-8"


def _as_binary(data: bytes) -> str:
    if data[:1] == b"\x80" and data[1:2] in _PICKLES and data.endswith(b"."):
        return f"starts with 80{data[1]:02x}: a pickle of Python, which is not read here"
    if 0x80 <= data[0] <= 0x9F or data[0] in (0xDE, 0xDF, 0xDC, 0xDD):
        try:
            msgspec.msgpack.decode(data[:LOOKED_AT])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return "looks like MessagePack, which is not read here"
    return f"is of no kind that is known here; it starts with {data[:8].hex()}"
