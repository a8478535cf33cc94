"""Keys of rows in changelogs and stores: a message's key and a subkey, encoded together."""

from __future__ import annotations

from typing import Final

#: Maximum bytes of a key, because its length is encoded in two bytes.
MAX_KEY_BYTES: Final = 0xFFFF


def row_key(key: bytes, subkey: bytes = b"") -> bytes:
    """The changelog key of a row. The key's length comes first, so that no two pairs collide and the rows of
    a key are adjacent.
    """
    return len(key).to_bytes(2, "big") + key + subkey


def split_row_key(data: bytes) -> tuple[bytes, bytes]:
    """The (key, subkey) from which `row_key` made these bytes."""
    size = int.from_bytes(data[:2], "big")
    return data[2 : 2 + size], data[2 + size :]
