"""Where a lane stands in a partition of a topic, as its changelog has it: `1200`, or `1200 1203-1250`.

All below the offset is handled. What follows are ranges above it that are handled, too, begin to end, the end
not included: messages of other keys, which did not wait for a slow one (docs/adr/0044-only-keys-wait.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

Range = tuple[int, int]


class Position(NamedTuple):
    """An offset, and what is handled above it."""

    offset: int
    ahead: tuple[Range, ...] = ()


def encode_position(offset: int, ahead: Iterable[Range] = ()) -> bytes:
    """As it is kept."""
    ranges = ",".join(f"{begin}-{end}" for begin, end in ahead)
    return (f"{offset} {ranges}" if ranges else f"{offset}").encode()


def decode_position(data: bytes) -> Position:
    """The position that was stored. Raises ValueError."""
    offset, _, ranges = data.decode().partition(" ")
    pairs = (each.partition("-") for each in ranges.split(",") if each)
    return Position(int(offset), tuple((int(begin), int(end)) for begin, _, end in pairs))


def end_of_handled(offset: int, ahead: Iterable[Range]) -> int:
    """The offset after the last that is handled, also above a position."""
    return max((end for _, end in ahead), default=offset)


def below(ahead: Iterable[Range], cut: int | None) -> tuple[Range, ...]:
    """What is left of ranges in a log that was cut there; None: it was not."""
    if cut is None:
        return tuple(ahead)
    return tuple((begin, min(end, cut)) for begin, end in ahead if begin < cut)


class Ahead:
    """Offsets that are handled above the position of one partition, while it is held up."""

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
        """In order, none meets another."""
        return list(zip(self._begins, self._ends, strict=True))

    def add(self, begin: int, end: int) -> None:
        """One range more; those that it meets become one with it."""
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
        """All below an offset is handled: how far that goes with what was handled ahead of it, which is
        forgotten up to there.
        """
        passed = bisect_right(self._begins, offset)
        if passed:
            offset = max(offset, self._ends[passed - 1])
            del self._begins[:passed], self._ends[:passed]
        return offset
