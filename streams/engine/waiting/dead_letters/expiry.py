"""Remove dead letters after their retention, in bounded steps. Those that hold a queue or are being replayed
stay.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from streams.engine.staging.changes import DEAD_LETTERS_BY_AGE
from streams.engine.staging.keys import after_time, split_store_key, time_key
from streams.engine.waiting.dead_letters.row import LetterState
from streams.engine.waiting.dead_letters.table import DeadLetters

log = structlog.get_logger(__name__)

#: Letters that one step reads: the lane handles nothing else for some milliseconds.
STEP = 200
#: Seconds from the end of one round to the beginning of the next.
ROUND = 600.0


class Expiry:
    """A periodic task that goes through the letters of a lane, from the oldest on, in steps."""

    def __init__(self, letters: DeadLetters) -> None:
        self._staging = letters.staging
        self._store = letters.staging.store
        self._retention = letters.staging.app.lane_options.dead_letter_retention
        self._letters = letters
        self._next = 0.0
        self._from = b""

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Stage the removal of letters that have expired at `now` (epoch seconds), within the lane's room.
        True if there were any.
        """
        if now < self._next or (most := min(STEP, room())) <= 0:
            return False
        stop = time_key(int((now - self._retention) * 1000))
        expired = 0
        stale = []
        entries = self._store.scan(DEAD_LETTERS_BY_AGE, start=self._from, stop=stop)
        for looked, (entry, _) in enumerate(entries):
            if looked == most:
                self._from = entry
                break
            gone = self._expire(after_time(entry))
            if gone is None:
                stale.append((DEAD_LETTERS_BY_AGE, entry, None))
            else:
                expired += gone
        else:
            self._from, self._next = b"", now + ROUND
        if stale:
            self._store.apply(stale, {})
        self._staging.counters.expired_letters += expired
        return expired > 0

    def _expire(self, local: bytes) -> bool | None:
        """Remove a letter. False: it must stay. None: there is none, so its index entry is stale."""
        letter = self._letters.get(local)
        if letter is None:
            return None
        if letter.queue or letter.state is LetterState.REPLAYING:
            return False
        log.info(
            "dead_letter_expired",
            handler=letter.handler,
            state=str(letter.state),
            error_type=letter.error_type,
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
        )
        self._staging.append(split_store_key(local)[0], [self._letters.remove(letter)], key=letter.key or b"")
        return True
