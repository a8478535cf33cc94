"""Pages of rows straight from the stores, with a bound on the work of each: lanes share the event loop.

A cursor is where the next page begins, not how many rows to skip: it stays good while rows come and go.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streams.control.base.view import Problem
from streams.engine.staging.keys import store_key
from streams.ports import Store
from streams.units import MIB

#: Rows on a page by default, and at most.
ROWS = 50
MOST_ROWS = 500
#: Stored bytes on a page: a row may be as large as the broker's limit.
MOST_BYTES = MIB
#: Ranges looked into for one page, full or not: partitions may be many and empty.
MOST_RANGES = 100


class Range(NamedTuple):
    """Local keys with start <= key < stop, in one store; `stop` None is the end of the table."""

    store: Store
    start: bytes
    stop: bytes | None


class Page(NamedTuple):
    """Rows by local key, and where the next page begins; None after the last."""

    rows: list[tuple[bytes, bytes]]
    next: bytes | None


def read_page(table: str, ranges: Iterable[Range], limit: int) -> Page:
    """The first rows of ranges that are in order of their keys. A page may be short and still have a next."""
    rows: list[tuple[bytes, bytes]] = []
    size = 0
    for looked, (store, start, stop) in enumerate(ranges):
        if looked == MOST_RANGES:
            return Page(rows, start)
        for key, value in store.scan(table, start=start, stop=stop):
            if len(rows) == limit or (rows and size + len(value) > MOST_BYTES):
                return Page(rows, key)
            rows.append((key, value))
            size += len(value)
    return Page(rows, None)


def from_cursor(ranges: Iterable[Range], begin: bytes) -> Iterator[Range]:
    """The ranges at or after a cursor's place."""
    for store, start, stop in ranges:
        if stop is None or stop > begin:
            yield Range(store, max(start, begin), stop)


def partition_range(store: Store, partition: int) -> Range:
    """All rows of a partition."""
    first = store_key(partition, b"")
    return Range(store, first, after(first))


def prefix_ranges(store: Store, table: str, partition: int, prefix: bytes, begin: bytes) -> Iterator[Range]:
    """The rows of a partition whose key begins with `prefix`.

    Keys of one length lie together (`row_key` puts the length first), so each length that occurs has a
    range of its own; lengths that do not occur are not looked into.
    """
    _, low, end = partition_range(store, partition)
    at: bytes | None = max(begin, low + len(prefix).to_bytes(2, "big"))
    while at is not None:
        found = next(store.scan(table, start=at, stop=end), None)
        if found is None:
            return
        length = found[0][:4]
        yield Range(store, length + prefix, after(length + prefix))
        at = after(length)


def after(prefix: bytes) -> bytes | None:
    """The least key greater than all that begin with `prefix`; None when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def encode_cursor(place: bytes | None) -> str:
    """A place as text for an address; empty for the end."""
    return "" if place is None else urlsafe_b64encode(place).decode().rstrip("=")


def decode_cursor(text: str) -> bytes:
    """The place that `encode_cursor` was given. Raises Problem 400."""
    try:
        place = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (NotBase64, ValueError):
        place = b""
    if encode_cursor(place) != text:  # what Python's decoder leaves out silently would be another place
        raise Problem(400, "bad_cursor", f"{text!r} is no cursor: take it from `next` of the page before")
    return place


def decode_limit(text: str) -> int:
    """How many rows are wanted. Raises Problem 400."""
    if not text:
        return ROWS
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= MOST_ROWS):
        raise Problem(400, "bad_limit", f"limit is {text!r}: it must be a number from 1 to {MOST_ROWS}")
    return int(text)
