"""Builds record batches for tests, intact or damaged, as other clients or a bad disk may produce them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from typing import Any

import cramjam

from streams.kafka.records.heads import CHECKED_FROM, HEADER, Head


def _xerial(data: bytes) -> bytes:
    """Snappy in the block format of the Java client."""
    out = bytearray(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01")
    for start in range(0, len(data), 1 << 15):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + (1 << 15)]))
        out += len(block).to_bytes(4, "big") + block
    return bytes(out)


def _lz4(data: bytes) -> Any:
    """LZ4 with independent blocks, because brokers refuse linked ones."""
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    compressor.compress(data)
    return compressor.finish()


#: Number and compressor of each codec of Kafka, with the formats that the Java client and librdkafka write.
CODECS: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, _xerial),
    "snappy, raw": (2, cramjam.snappy.compress_raw),
    "lz4": (3, _lz4),
    "zstd": (4, cramjam.zstd.compress),
}


def varint(number: int) -> bytes:
    """A zigzag number."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(0x80 | (left & 0x7F))
        left >>= 7
    return bytes([*out, left])


def part(data: bytes | None) -> bytes:
    """The length as a zigzag number, then the bytes; None has the length -1."""
    return varint(-1) if data is None else varint(len(data)) + data


def framed(body: bytes) -> bytes:
    """The length as a zigzag number, then the record."""
    return varint(len(body)) + body


def record(
    delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes | str, bytes | None]] = (),
    *,
    later: int = 0,
) -> bytes:
    """A record with this offset delta, `later` milliseconds after the batch's first timestamp. Header names
    may be any bytes.
    """
    pairs = [(name.encode() if isinstance(name, str) else name, value) for name, value in headers]
    said = b"".join(part(name) + part(value) for name, value in pairs)
    parts = varint(later), varint(delta), part(key), part(value), varint(len(pairs)), said
    return framed(b"\0" + b"".join(parts))


def batch(
    records: Sequence[bytes],
    /,
    *,
    codec: str = "none",
    body: bytes | None = None,
    timestamp: int = 1_000_000_000_000,
    base: int = 0,
    **head: int,
) -> bytes:
    """A batch with a right checksum. `body` replaces the encoded records. `head` overrides header fields,
    also with wrong values.
    """
    number, compress = CODECS[codec]
    data = bytes(compress(b"".join(records))) if body is None else body
    count = len(records)
    said = {
        "base": base, "length": HEADER.size - 12 + len(data), "epoch": 0, "magic": 2, "crc": 0,
        "attributes": number, "last_delta": count - 1, "first_timestamp": timestamp,
        "max_timestamp": timestamp, "producer_id": -1, "producer_epoch": -1, "sequence": -1, "records": count,
    }  # fmt: skip
    return checked(HEADER.pack(*Head(**{**said, **head})) + data)


def checked(raw: bytes) -> bytes:
    """The batch with its checksum corrected."""
    sum_at = CHECKED_FROM - 4
    return raw[:sum_at] + crc32c(raw[CHECKED_FROM:]).to_bytes(4, "big") + raw[CHECKED_FROM:]


def is_whole(raw: bytes) -> bool:
    """Whether the batch's checksum is right."""
    return raw[CHECKED_FROM - 4 : CHECKED_FROM] == crc32c(raw[CHECKED_FROM:]).to_bytes(4, "big")


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), the checksum of a batch."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(number) for number in range(256)]
