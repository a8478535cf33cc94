"""Reads Avro bytes and writes MessagePack heads. Compiled with the hot path; see `avro_bytes`."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64, u8

#: Maximum bits of a length, because a client can write any number there.
_LENGTH: Final = 31
#: Type codes of MessagePack that precede a size of four bytes. A text of less than 32 bytes has its size in
#: the type code.
BYTES: Final = 0xC6
TEXT: Final = 0xDB
ARRAY: Final = 0xDD
MAP: Final = 0xDF
_SHORT_TEXT: Final = 0xA0


class Source:
    """Bytes, and the position up to which they have been read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at: i64 = 0

    def number(self) -> i64:
        """Read a zigzag number. Raises ValueError if it has more than nine bytes, IndexError at the end."""
        data, at = self.data, self.at
        byte: i64 = data[at]
        at += 1
        found: i64 = byte & 0x7F
        shift: i64 = 7
        while byte >= 0x80:
            if shift >= 63:  # it may not fit an `i64`, and bad data may never end it
                raise ValueError(at)
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
        self.at = at
        return (found >> 1) ^ -(found & 1)

    def count(self) -> i64:
        """Read a length or another count. Raises ValueError if it is negative or has more than 31 bits."""
        number = self.number()
        if number >> _LENGTH != 0:
            raise ValueError(number)
        return number

    def copy(self, code: u8, out: BytesWriter) -> None:
        """Copy sized bytes, with a MessagePack head. Raises ValueError if bytes are cut off."""
        size = self.count()
        at = self.at
        end = at + size
        if end > len(self.data):
            raise ValueError(size)
        self.at = end
        write_head(code, size, out)
        out.write(self.data[at:end])


def write_head(code: u8, size: i64, out: BytesWriter) -> None:
    """Add a MessagePack type code and a size."""
    number: int = size
    if code == TEXT and size < 32:
        short: u8 = _SHORT_TEXT | number
        out.append(short)
    else:
        out.append(code)
        long: i32 = number
        write_i32_be(out, long)
