"""Marks of logs, by which a lane notices that a log has lost its end, even if it has grown again since.

A position says how far a log was read or written. Its leader epoch tells apart two logs of the same length: a
later leader that lacked the end of the log began its own epoch before the position (KIP-320,
docs/adr/0075-logs-that-were-cut.md).
"""

from __future__ import annotations

from typing import NamedTuple

from streams.ports import NO_EPOCH, TP, Commit

#: No lost records were found.
_NONE = -1


class Mark(NamedTuple):
    """A mark of a log, stored as text with a group's position, and in a local store for each changelog.

    Attributes:
        epoch, at: in this leader epoch, the log had everything below this offset.
        accepted: how often an operator has accepted that the log lost records. A store with a lower count
            is not a copy of this log.
        cut: the offset from which a lane has found records lost; negative: none.
    """

    epoch: int = NO_EPOCH
    at: int = 0
    accepted: int = 0
    cut: int = _NONE

    @property
    def is_cut(self) -> bool:
        """Whether a lane has found records lost, and no operator has decided how to go on."""
        return self.cut >= 0


UNKNOWN = Mark()


def encode_mark(mark: Mark) -> str:
    """The stored form of a mark; empty for UNKNOWN."""
    return "" if mark == UNKNOWN else " ".join(map(str, mark))


def decode_mark(text: str) -> Mark:
    """The mark that was stored. UNKNOWN for any other text, because other clients may commit one."""
    parts = text.split(" ")
    if len(parts) != len(UNKNOWN):
        return UNKNOWN
    try:
        return Mark(*map(int, parts))
    except ValueError:
        return UNKNOWN


def mark_of(commit: Commit | None) -> Mark:
    """The mark of a changelog's end or a source position. For the latter, Kafka itself stores the epoch."""
    if commit is None:
        return UNKNOWN
    mark = decode_mark(commit.text)
    if commit.epoch == NO_EPOCH:
        return mark
    return mark._replace(epoch=commit.epoch, at=commit.offset)


def lost_from(position: int, mark: Mark, end: int, epoch_end: int | None) -> int | None:
    """The offset from which a log has lost the records that it had up to this position; None: it lost none.

    `end` is the log's end. `epoch_end` is where a later epoch than the mark's begins, or else the log's end;
    None if it is unknown. Then only a log that is too short is noticed.
    """
    found = min(end, epoch_end) if epoch_end is not None and epoch_end < mark.at else end
    if mark.is_cut:
        return min(found, mark.cut)  # the log may have lost more since, from a lower offset
    return found if found < max(position, mark.at) else None


def key_of(tp: TP) -> bytes:
    """The key under which a store keeps the mark of a changelog."""
    return f"{tp.topic}:{tp.partition}".encode()
