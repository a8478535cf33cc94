"""Timers of a lane ring when they are due."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

import structlog

from streams.model.application import LaneOptions
from streams.model.layout import LANE
from streams.ports import Store, Write
from streams.staging.area import Overlay
from streams.staging.changelog import Staged
from streams.staging.changes import TIMERS, TIMERS_BY_DUE
from streams.staging.commit_order import CommitOrder
from streams.staging.keys import TIMER, local_lane_key, name_in
from streams.staging.outcomes import OutcomeWriter
from streams.staging.refusals import Refusals
from streams.staging.timers import Due, DueIndex, first_due, timer_key
from streams.staging.unreadable import Unreadable

log = structlog.get_logger(__name__)

#: For how long a timer is put off whose message the broker refuses, in seconds: first, and at most. Each try
#: costs the lane a transaction and an opening.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
#: Of a timer's key and name, what the log has, in bytes.
_SAID = 200


class RefusedTimers:
    """Puts timers off whose messages the broker refuses. `why` is what health says of them, by name."""

    def __init__(self, writer: OutcomeWriter, refusals: Refusals, why: dict[bytes, str]) -> None:
        self._writer = writer
        self._refusals = refusals
        self._why = why

    def put_off(self, due: Due, now: float) -> bool:
        """Put a due timer off, if its message was refused. Each time for as long as it is overdue."""
        if not self._why and not self._refusals:
            return False
        error = self._refusals.of_timer(due.name)
        if not error:
            self._why.pop(due.name, None)
            return False
        pause = min(max(now - first_due(due), FIRST_PAUSE), LONGEST_PAUSE)
        self._refusals.of(self._writer.put_off(due, now + pause))
        key, name = timer_key(due.name), due.name.partition(b"\0")[0]
        said = {"key": _text(key), "topic": due.topic, "handler": _text(name)}
        self._why[due.name] = (
            f"a timer that {said['handler']} has set for key {said['key']!r} is put off: its message for"
            f" {due.topic} is refused: {error}. It is sent once the topic takes it: raise the limit"
        )
        log.warning("timer_refused", **said, error=error, again_in=round(pause))
        return True


def _text(data: bytes) -> str:
    return data[:_SAID].decode("utf-8", "backslashreplace")


class Timers:
    """A chore: stages the messages of timers that are due. One for each opening of a lane: others may have
    written what it finds then.
    """

    def __init__(
        self,
        options: LaneOptions,
        store: Store,
        overlay: Overlay,
        sequences: CommitOrder,
        writer: OutcomeWriter,
        busy: Collection[bytes],
        unreadable: Unreadable,
        refused: RefusedTimers,
    ) -> None:
        """`busy` are the keys in flight."""
        self._options = options
        self._store = store
        self._overlay = overlay
        self._sequences = sequences
        self._writer = writer
        self._busy = busy
        self._unreadable = unreadable
        self._refused = refused
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
                    if not self._refused.put_off(due, now):
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
