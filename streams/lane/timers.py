"""Timers of a lane ring when they are due."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from streams.model.application import LaneOptions
from streams.model.layout import LANE
from streams.ports import Store, Write
from streams.staging.changes import TIMERS, TIMERS_BY_DUE
from streams.staging.keys import TIMER, local_lane_key, name_in
from streams.staging.outcomes import OutcomeWriter
from streams.staging.sequences import Overlay, Sequences, Staged
from streams.staging.timers import DueIndex, timer_key
from streams.staging.unreadable import Unreadable


class Timers:
    """A chore: stages the messages of timers that are due. One for each opening of a lane: others may have
    written what it finds then.
    """

    def __init__(
        self,
        options: LaneOptions,
        store: Store,
        overlay: Overlay,
        sequences: Sequences,
        writer: OutcomeWriter,
        busy: Collection[bytes],
        unreadable: Unreadable,
    ) -> None:
        """`busy` are the keys in flight."""
        self._options = options
        self._store = store
        self._overlay = overlay
        self._sequences = sequences
        self._writer = writer
        self._busy = busy
        self._unreadable = unreadable
        self._due = DueIndex(self._note)

    def step(self, now: float, room: int) -> bool:
        """Stage what is due at `now`, epoch seconds. True when there was any. A key in flight has its turn
        when it is through: its handler may yet change its timers, and what it decides comes first.
        """
        del room  # timers have the lane's own, which other lanes cannot take
        rung = False
        stale = []
        with closing(self._due.due(self._store, now, self._is_staged)) as found:
            for due, index_key in found:
                if due is None:
                    stale.append(Write(TIMERS_BY_DUE, index_key, None))
                elif timer_key(due.name) not in self._busy:
                    self._writer.fire(due, now)
                    rung = True
                if self._sequences.is_over(self._options.max_backlog, self._options.max_backlog_bytes):
                    break
        if stale:
            self._store.apply(stale, {})
        return rung

    def committed(self, staged: Staged) -> None:
        """These changes are in the store now."""
        self._due.written(staged.changes.get(LANE, {}).values())

    def _note(self, timer: bytes, error: Exception) -> None:
        what = f"the timer {name_in(timer)!r}"
        self._unreadable.own(TIMERS, timer, what, error, "it does not ring; its handler may set it anew")

    def _is_staged(self, timer: bytes) -> bool:
        """Whether a change of a timer, by its local name, is not committed yet."""
        return self._overlay.get(LANE, local_lane_key(TIMER, timer)) is not None
