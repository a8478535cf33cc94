"""Fire a lane's timers when they are due."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from math import ceil, inf

import structlog

from streams.engine.staging.area import StagingArea
from streams.engine.staging.changelog import Staged
from streams.engine.staging.changes import TIMERS, TIMERS_BY_DUE
from streams.engine.staging.entry import Entry, TimerEntry
from streams.engine.staging.keys import TIMER, local_lane_key, name_in, store_key, time_key
from streams.engine.staging.loops import Loops
from streams.engine.staging.timers import (
    Due,
    DueIndex,
    first_due,
    latest_due,
    remove_timer,
    set_timer,
    timer_key,
)
from streams.model.envelope import ID, TIME, TIMER_AFTER, TIMER_DUE, rfc3339
from streams.model.layout import LANE
from streams.ports import TP, Headers, Outgoing

log = structlog.get_logger(__name__)

#: How long a timer is postponed if the broker refuses its message, in seconds: at first, and at most. Each
#: attempt costs the lane a transaction and an opening.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
#: After all keys of the index.
_END = b"\xff" * 9
#: Maximum bytes of a timer's key and handler in the log.
MOST_TEXT = 200


class Timers:
    """A periodic task that stages the messages of due timers. It is new for each opening of a lane, because
    other workers may have written timers meanwhile.
    """

    def __init__(
        self,
        staging: StagingArea,
        loops: Loops | None,
        in_flight: Collection[bytes],
        refused: dict[bytes, str],
    ) -> None:
        """`in_flight` are the keys with running handlers. `refused` has the texts about refused messages for
        health, by the timer's name.
        """
        self._options = staging.app.lane_options
        self._staging = staging
        self._loops = loops
        self._in_flight = in_flight
        self._refused = refused
        self._due = DueIndex(self._note)

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Fire the timers due at `now`, in epoch seconds. True if there were any. Timers of a key in flight
        wait, because its handler may still change them, and its outcome comes first.
        """
        del room  # timers have the lane's own bound, which other lanes cannot use up
        rung = False
        stale = []
        with closing(self._due.due(self._staging.store, now, self._is_staged)) as found:
            for due, index_key in found:
                if due is None:
                    stale.append((TIMERS_BY_DUE, index_key, None))
                elif timer_key(due.name) not in self._in_flight:
                    if not self._postpone_if_refused(due, now):
                        self._ring(due, now)
                    rung = True
                if self._staging.order.is_over(self._options.max_backlog, self._options.max_backlog_bytes):
                    break
        if stale:
            self._staging.store.apply(stale, {})
        return rung

    def _ring(self, due: Due, now: float) -> None:
        """Stage a due timer's message, and the removal of the timer."""
        staging, loops = self._staging, self._loops
        headers = [header for header in due.outgoing.headers if header[0] not in (TIME, TIMER_AFTER)]
        headers.append((TIME, rfc3339(now).encode()))
        if not any(name == TIMER_DUE for name, _ in headers):  # else it was postponed
            headers.append((TIMER_DUE, rfc3339(due.due_ms / 1000).encode()))
        key = due.outgoing.key or b""
        outgoing = Outgoing(key, due.outgoing.value, headers)
        changes = [remove_timer(due.name), *staging.references(outgoing, now)]
        to = TP(due.topic, staging.app.layout.partition_of(key))
        if loops is not None and due.topic in loops.topics:
            loops.add(due.topic, key, dict(headers)[ID])
        staging.append_entry(_entry_of(due), changes, [(to, outgoing)])
        staging.counters.timers += 1

    def _postpone_if_refused(self, due: Due, now: float) -> bool:
        """Postpone a due timer if the broker refuses its message, each time by as long as it is overdue.
        Returns whether it was postponed.
        """
        refusals = self._staging.refusals
        if not self._refused and not refusals:
            return False
        error = refusals.of_timer(due.name)
        if not error:
            self._refused.pop(due.name, None)
            return False
        pause = _pause(due, now)
        refusals.of(self._postpone(due, now + pause))
        timer = {
            "key": _text(timer_key(due.name)),
            "topic": due.topic,
            "handler": _text(due.name.partition(b"\0")[0]),
        }
        self._refused[due.name] = (
            f"a timer that {timer['handler']} has set for key {timer['key']!r} is put off: its message for"
            f" {due.topic} is refused: {error}. It is sent once the topic takes it: raise the limit"
        )
        log.warning("timer_refused", **timer, error=error, again_in=round(pause))
        return True

    def _postpone(self, due: Due, until: float) -> Entry:
        """Let a due timer fire at `until`, in epoch seconds. Its message keeps its original due time."""
        headers = list(due.outgoing.headers)
        if not any(name == TIMER_DUE for name, _ in headers):
            headers.append((TIMER_DUE, rfc3339(due.due_ms / 1000).encode()))
        return self._move(due, until, headers)

    def _move(self, due: Due, until: float, headers: Headers) -> Entry:
        outgoing = Outgoing(due.outgoing.key, due.outgoing.value, headers)
        change = set_timer(due.name, until, due.topic, outgoing)
        return self._staging.append_entry(_entry_of(due), [change])

    def bring_back(self, begin: bytes, most: int, now: float, slack: float) -> tuple[int, bytes]:
        """Move timers that a clock ahead of time has set too late. Checks `most` timers from the index key
        `begin` on, and leaves those that are late by less than `slack` seconds. Returns how many were moved,
        and the key at which to continue; empty: none is left.
        """
        found, end = self._due.later(self._staging.store, begin, most)
        moved = 0
        for due in found:
            local = store_key(due.partition, due.name)
            if self._is_staged(local) or timer_key(due.name) in self._in_flight:
                end = min(end or _END, time_key(due.due_ms) + local)  # check it again next time
                continue
            latest = latest_due(due, now, _pause(due, now))
            if latest < inf and due.due_ms > ceil((latest + slack) * 1000):
                self._move(due, latest, due.outgoing.headers)
                moved += 1
        return moved, end

    def committed(self, staged: Staged) -> None:
        """Record that the changes of a transaction are in the store now."""
        self._due.written(staged.changes.get(LANE, {}).values())

    def _note(self, timer: bytes, error: Exception) -> None:
        what = f"the timer {name_in(timer)!r}"
        self._staging.unreadable.own(
            TIMERS, timer, what, error, "it will not fire; its handler may set it again"
        )

    def _is_staged(self, timer: bytes) -> bool:
        """Whether a change of a timer, by its local name, is not committed yet."""
        return self._staging.get(LANE, local_lane_key(TIMER, timer)) is not None


def _entry_of(due: Due) -> TimerEntry:
    return TimerEntry(due.partition, timer_key(due.name), due.name)


def _pause(due: Due, now: float) -> float:
    """Seconds by which a timer is postponed if its message is refused."""
    return min(max(now - first_due(due), FIRST_PAUSE), LONGEST_PAUSE)


def _text(data: bytes) -> str:
    return data[:MOST_TEXT].decode("utf-8", "backslashreplace")
