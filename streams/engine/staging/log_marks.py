"""What is known of a log up to a position, so that a lost end is noticed, also when the log has grown again.

A position says how far a log was read or written. The leader epoch in which it was that long tells two logs
apart that are equally long: a later leader that lacked its end has begun its own epoch before the position
(KIP-320, docs/adr/0075-logs-that-were-cut.md).
"""

from __future__ import annotations

from typing import NamedTuple

from streams.ports import NO_EPOCH, TP, Commit

#: No cut of a log was noticed.
_NONE = -1


class Mark(NamedTuple):
    """Kept as text with a group's position, and by a local store for each changelog it is a copy of.

    Attributes:
        epoch, at: in this leader epoch the log had all below this offset.
        accepted: how often an operator has gone on with a log that was cut. A store with a lower count is
            not a copy of it.
        cut: the offset from which on a lane has found records lost; negative: none.
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
    """As it is kept; empty where nothing is known."""
    return "" if mark == UNKNOWN else " ".join(map(str, mark))


def decode_mark(text: str) -> Mark:
    """The mark that was kept; UNKNOWN for another text: clients of other kinds commit any, mostly none."""
    parts = text.split(" ")
    if len(parts) != len(UNKNOWN):
        return UNKNOWN
    try:
        return Mark(*map(int, parts))
    except ValueError:
        return UNKNOWN


def mark_of(commit: Commit | None) -> Mark:
    """The mark of a changelog's end, or of a source position, whose epoch Kafka itself keeps."""
    if commit is None:
        return UNKNOWN
    mark = decode_mark(commit.text)
    if commit.epoch == NO_EPOCH:
        return mark
    return mark._replace(epoch=commit.epoch, at=commit.offset)


def lost_from(position: int, mark: Mark, end: int, epoch_end: int | None) -> int | None:
    """The offset from which on a log is not the one that had this position; None: nothing of it is lost.

    `end` is where the log ends, `epoch_end` where it goes on in a later epoch than the mark's, or ends; None
    where that is unknown. Without an epoch only a log that is too short is noticed.
    """
    found = min(end, epoch_end) if epoch_end is not None and epoch_end < mark.at else end
    if mark.is_cut:
        return min(found, mark.cut)  # it may have been cut again since, and further down
    return found if found < max(position, mark.at) else None


def key_of(tp: TP) -> bytes:
    """The key under which a store keeps the mark of a changelog."""
    return f"{tp.topic}:{tp.partition}".encode()
