"""The ends of a lane's changelogs, committed with each transaction that writes to them.

Only the lane writes to its changelogs, so it knows each end in advance: the previous end, plus its own
records, plus a marker. If a log is shorter than that, acknowledged records were lost.
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
    """The changelog ends of a lane, from one opening to the next."""

    def __init__(self, ends: Mapping[TP, int], marks: Mapping[TP, Mark]) -> None:
        """`ends` were read after all former owners were fenced. `marks` have their leader epochs."""
        self._ends = dict(ends)
        self._marks = dict(marks)
        #: Changelogs with a mark that is not committed to the group yet.
        self._unwritten = set(self._ends)

    @property
    def has_news(self) -> bool:
        """Whether there are marks that are not committed to the group yet."""
        return bool(self._unwritten)

    def expected(self, records: Mapping[TP, Sequence[Any]]) -> dict[TP, int]:
        """Where changelogs will end after these records, without the marker of their transaction."""
        return {tp: self._ends[tp] + len(each) for tp, each in records.items() if tp in self._ends and each}

    def check(self, expected: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
        """Compare expected ends with the actual ones. Raises LogCut if one is lower: the log lost records."""
        short = [
            Lost(*tp, self._ends[tp], self._ends[tp] - (end - ends[tp]))
            for tp, end in expected.items()
            if ends.get(tp, end) < end
        ]
        if short:
            raise LogCut(short, hides=True)

    def commits(self, expected: Mapping[TP, int]) -> tuple[dict[TP, int], dict[TP, Note]]:
        """The ends that a transaction commits, with their notes: of changelogs that it writes to, and of
        those with a mark that is not committed yet.
        """
        offsets = {tp: self._ends[tp] for tp in self._unwritten}
        offsets |= {tp: end + _MARKER for tp, end in expected.items()}
        return offsets, {tp: Note(text=encode_mark(self._marks[tp])) for tp in offsets}

    def committed(self, expected: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
        """Record that a transaction is committed, with the ends that it reached."""
        self._unwritten.clear()
        self._ends |= {tp: ends.get(tp, end) + _MARKER for tp, end in expected.items()}

    def to_certify(self) -> dict[TP, int]:
        """Ends that moved since their leader epoch was last looked up. The last marker is left out, because
        it may not be written yet.
        """
        return {tp: end - _MARKER for tp, end in self._ends.items() if end - _MARKER > self._marks[tp].at}

    def certify(self, ends: Mapping[TP, int], epochs: Mapping[TP, int]) -> dict[TP, Mark]:
        """Record leader epochs that were looked up after these ends were known. Returns the new marks."""
        new = {tp: self._marks[tp]._replace(epoch=epoch, at=ends[tp]) for tp, epoch in epochs.items()}
        self._marks |= new
        self._unwritten |= new.keys()
        return new

    def renew(self) -> None:
        """Commit all ends again with the next transaction: brokers expire offsets after a while."""
        self._unwritten |= self._ends.keys()
