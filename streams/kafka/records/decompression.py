"""Decompresses clients' batches up to a size limit, because a few bytes can expand to gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct

import cramjam

#: Kafka's producers write one member. Each further one costs a copy of all bytes after it.
_MAX_GZIP_MEMBERS = 16
_GZIP = 31  # zlib's name for gzip's frame
_XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_BLOCK = Struct(">i")
#: First buffer size in bytes for formats that do not state their decompressed size.
_FIRST_TRY = 1 << 16
_NO_ROOM = "failed to write whole buffer"


class CannotOpen(ValueError):
    """The bytes are invalid for their codec, or decompress to more than the limit; the text says which."""


def decompressed(codec: int, data: bytes, limit: int) -> bytes:
    """Decompress with one of Kafka's codecs (1 to 4), to at most `limit` bytes. Raises CannotOpen."""
    name, opened = _CODECS.get(codec, ("", None))
    if opened is None:
        raise CannotOpen(f"there is no compression codec {codec}")
    try:
        return opened(data, limit)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CannotOpen(f"it does not decompress as {name}: {error}") from error


def _too_much(limit: int) -> CannotOpen:
    return CannotOpen(f"it decompresses to more than {limit} bytes")


def _gzip(data: bytes, limit: int) -> bytes:
    found = b""
    for _ in range(_MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        found += member.decompress(data, limit + 1 - len(found))
        if len(found) > limit:
            raise _too_much(limit)
        if not member.eof:
            raise CannotOpen("its gzip data are cut off")
        data = member.unused_data
        if not data:
            return found
    raise CannotOpen(f"it has more than {_MAX_GZIP_MEMBERS} gzip members")


def _snappy(data: bytes, limit: int) -> bytes:
    """Raw snappy, or the block format of the xerial library that Java clients write."""
    if not data.startswith(_XERIAL):
        return _raw_snappy(data, limit)
    found, pos = bytearray(), len(_XERIAL)
    while pos < len(data):
        if len(data) - pos < _BLOCK.size:
            raise CannotOpen("its snappy blocks are cut off")
        (size,) = _BLOCK.unpack_from(data, pos)
        pos += _BLOCK.size
        if not 0 <= size <= len(data) - pos:
            raise CannotOpen(f"a snappy block says that it has {size} bytes, and there are {len(data) - pos}")
        found += _raw_snappy(data[pos : pos + size], limit, len(found))
        pos += size
    return bytes(found)


def _raw_snappy(data: bytes, limit: int, before: int = 0) -> bytes:
    if before + cramjam.snappy.decompress_raw_len(data) > limit:
        raise _too_much(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _growing(into: Callable[[bytes, bytearray], int]) -> Callable[[bytes, int], bytes]:
    """A decompressor that retries `into` with a larger buffer, up to the limit, until the result fits."""

    def opened(data: bytes, limit: int) -> bytes:
        size = min(max(_FIRST_TRY, 4 * len(data)), limit)
        while True:
            buffer = bytearray(size)
            try:
                return bytes(memoryview(buffer)[: into(data, buffer)])
            except cramjam.DecompressionError as error:
                if _NO_ROOM not in str(error):
                    raise
                if size == limit:
                    raise _too_much(limit) from error
            size = min(4 * size, limit)

    return opened


_CODECS: dict[int, tuple[str, Callable[[bytes, int], bytes] | None]] = {
    1: ("gzip", _gzip),
    2: ("snappy", _snappy),
    3: ("lz4", _growing(cramjam.lz4.decompress_into)),
    4: ("zstd", _growing(cramjam.zstd.decompress_into)),
}
