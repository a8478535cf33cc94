"""The ends of a lane's changelogs, committed with each transaction that writes to them.

Only the lane writes there, so that it knows each end before: what follows the end of before is its own
records, then a marker. A shorter log has lost records that were acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streams.engine.staging.log_marks import Mark, encode_mark
from streams.errors import LogCut, Lost
from streams.ports import TP, Note

#: The marker that ends a transaction takes an offset.
_MARKER = 1


class ChangelogEnds:
    """Of one opening of a lane."""

    def __init__(self, ends: Mapping[TP, int], marks: Mapping[TP, Mark]) -> None:
        """`ends` after all former owners were fenced; `marks` say in which leader epochs that was."""
        self._ends = dict(ends)
        self._marks = dict(marks)
        #: Those of which the group does not have the newest mark.
        self._unwritten = set(self._ends)

    @property
    def has_news(self) -> bool:
        """Whether there are marks that the group does not have."""
        return bool(self._unwritten)

    def expected(self, records: Mapping[TP, Sequence[Any]]) -> dict[TP, int]:
        """Where changelogs end with these records, without the marker of their transaction."""
        return {tp: self._ends[tp] + len(each) for tp, each in records.items() if tp in self._ends and each}

    def check(self, expected: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
        """Compare with where brokers have written. Raises LogCut when that is below what was there before."""
        short = [
            Lost(*tp, self._ends[tp], self._ends[tp] - (end - ends[tp]))
            for tp, end in expected.items()
            if ends.get(tp, end) < end
        ]
        if short:
            raise LogCut(short, hides=True)

    def commits(self, expected: Mapping[TP, int]) -> tuple[dict[TP, int], dict[TP, Note]]:
        """The ends that a transaction commits, with their notes: of what it writes, and what is new."""
        offsets = {tp: self._ends[tp] for tp in self._unwritten}
        offsets |= {tp: end + _MARKER for tp, end in expected.items()}
        return offsets, {tp: Note(text=encode_mark(self._marks[tp])) for tp in offsets}

    def committed(self, expected: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
        """The transaction is committed."""
        self._unwritten.clear()
        self._ends |= {tp: ends.get(tp, end) + _MARKER for tp, end in expected.items()}

    def to_certify(self) -> dict[TP, int]:
        """Ends that have moved since their epoch was asked for, without the last marker: it may not be
        written yet.
        """
        return {tp: end - _MARKER for tp, end in self._ends.items() if end - _MARKER > self._marks[tp].at}

    def certify(self, ends: Mapping[TP, int], epochs: Mapping[TP, int]) -> dict[TP, Mark]:
        """Note the leader epochs that were asked for after these ends were known. Returns the new marks."""
        new = {tp: self._marks[tp]._replace(epoch=epoch, at=ends[tp]) for tp, epoch in epochs.items()}
        self._marks |= new
        self._unwritten |= new.keys()
        return new

    def renew(self) -> None:
        """Have all of them committed again: brokers forget positions that were not for long."""
        self._unwritten |= self._ends.keys()
