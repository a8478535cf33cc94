"""Positions as a lane's changelog stores them: `1200`, or `1200 1203-1250`.

Everything below the offset is handled. The ranges after it (end excluded) are handled, too: they have
messages of other keys, which did not wait for a slow one (docs/adr/0044-only-keys-wait.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

Range = tuple[int, int]


class Position(NamedTuple):
    """An offset, and the ranges that are handled above it."""

    offset: int
    ahead: tuple[Range, ...] = ()


def encode_position(offset: int, ahead: Iterable[Range] = ()) -> bytes:
    """The stored form of a position."""
    ranges = ",".join(f"{begin}-{end}" for begin, end in ahead)
    return (f"{offset} {ranges}" if ranges else f"{offset}").encode()


def decode_position(data: bytes) -> Position:
    """The position that was stored. Raises ValueError."""
    offset, _, ranges = data.decode().partition(" ")
    pairs = (each.partition("-") for each in ranges.split(",") if each)
    return Position(int(offset), tuple((int(begin), int(end)) for begin, _, end in pairs))


def end_of_handled(offset: int, ahead: Iterable[Range]) -> int:
    """The offset after the last handled one, including ranges above the position."""
    return max((end for _, end in ahead), default=offset)


def below(ahead: Iterable[Range], cut: int | None) -> tuple[Range, ...]:
    """The ranges that remain if a log has lost everything from offset `cut` on; None: it lost nothing."""
    if cut is None:
        return tuple(ahead)
    return tuple((begin, min(end, cut)) for begin, end in ahead if begin < cut)


class Ahead:
    """Offsets handled above the position of one partition, while an earlier message is unfinished."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._begins = [begin for begin, _ in ranges]
        self._ends = [end for _, end in ranges]

    def __len__(self) -> int:
        return len(self._begins)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._begins, offset) - 1
        return at >= 0 and offset < self._ends[at]

    @property
    def ranges(self) -> list[Range]:
        """The ranges in order, with gaps between them."""
        return list(zip(self._begins, self._ends, strict=True))

    def add(self, begin: int, end: int) -> None:
        """Add a range, and merge it with those that it touches."""
        first = bisect_right(self._begins, begin)
        if first and self._ends[first - 1] >= begin:
            first -= 1
            begin = self._begins[first]
        last = bisect_right(self._begins, end)
        if last > first:
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def reached(self, offset: int) -> int:
        """Given that everything below `offset` is handled, return the offset up to which that holds with the
        ranges, and forget those below it.
        """
        passed = bisect_right(self._begins, offset)
        if passed:
            offset = max(offset, self._ends[passed - 1])
            del self._begins[:passed], self._ends[:passed]
        return offset
