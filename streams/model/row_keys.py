"""Keys of rows: a message's key and a subkey in one, as changelogs and stores have them."""

from __future__ import annotations

from typing import Final

#: The most bytes that a key may have, because its length is kept in two.
MAX_KEY_BYTES: Final = 0xFFFF


def row_key(key: bytes, subkey: bytes = b"") -> bytes:
    """The changelog key of a row. The key's length comes first, so that no two pairs collide and all
    sub-rows of a key lie together.
    """
    return len(key).to_bytes(2, "big") + key + subkey


def split_row_key(data: bytes) -> tuple[bytes, bytes]:
    """The (key, subkey) that `row_key` was made of."""
    size = int.from_bytes(data[:2], "big")
    return data[2 : 2 + size], data[2 + size :]
