"""Rows for the objects that messages refer to, in the lane that read or wrote the reference (docs/adr/0010).

The clean-up of S3 deletes objects that no row names. So a row stays as long as anything may use the
reference: the message in its topic, a duplicate, a timer, a waiting row or a dead letter. Each of these
writes the row with its own time, and this periodic task writes it again while a message waits or a dead
letter is kept. A row is old once all of them are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from streams.engine.staging.changes import DEAD_LETTERS_BY_AGE, MESSAGES, Change
from streams.engine.staging.keys import after_time, prefix_in, split_store_key, time_in, time_key
from streams.engine.staging.payloads import reference_in
from streams.engine.waiting.dead_letters.table import DeadLetters
from streams.engine.waiting.queue import read_message
from streams.model.claim import DATAREF
from streams.model.layout import CLAIMS
from streams.ports import Headers
from streams.units import MIB

#: Rows that one step reads: a few milliseconds.
STEP = 200
#: Bytes of dead letters that one step reads, about, because their rows may be large.
LETTERS_BYTES = MIB
#: Seconds from one round over all rows to the next.
PAUSE = 600.0

_DATAREF = DATAREF.encode()


class References:
    """A periodic task that maintains the rows of a lane's references, in bounded steps. A round first renews
    the rows of waiting messages and dead letters, then removes old rows. So it never removes a row that is
    still needed.
    """

    def __init__(self, letters: DeadLetters, bucket: str) -> None:
        """`bucket` has this application's objects. A row is kept for `claim_retention` from its time on."""
        self._letters = letters
        self._staging = letters.staging
        self._store = letters.staging.store
        self._bucket = bucket
        self._retention = letters.staging.app.lane_options.claim_retention
        self._round: Iterator[list[tuple[int, Change]]] = iter(())
        self._next = 0.0
        self._went_round = False

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do one step at `now`, in epoch seconds. True if it staged something."""
        del room  # a step has its own bound, and rows must not grow old during an outage
        if now < self._next:
            return False
        found = next(self._round, None)
        if found is None:
            self._next, self._round = now + PAUSE, self._begin(now)
            return False
        changes: dict[int, list[Change]] = {}
        for partition, change in found:
            changes.setdefault(partition, []).append(change)
            self._staging.counters.references_removed += change.value is None
        for partition, some in changes.items():
            self._staging.append(partition, some)
        return bool(changes)

    def _begin(self, now: float) -> Iterator[list[tuple[int, Change]]]:
        for page in self._pages(MESSAGES):
            yield self._renewed(_waiting(page), now)
        yield from self._letters_renewed(now)
        for page in self._pages(CLAIMS):
            yield [
                (partition, Change(CLAIMS, name, None))
                for local, time in page
                for partition, name in (split_store_key(local),)
                if _seconds(time) < now - self._retention and self._staging.get(CLAIMS, local) is None
            ]

    def _letters_renewed(self, now: float) -> Iterator[list[tuple[int, Change]]]:
        """Renew the rows of dead letters. A row is never older than its dead letter, so only letters older
        than the retention of rows need this: those that hold a queue, or are being replayed. The first round
        covers all letters, because a worker without an object store may have made some without rows.
        """
        old = int((now - self._retention) * 1000) + 1
        stop = time_key(max(old, 0)) if self._went_round else None
        for page in self._pages(DEAD_LETTERS_BY_AGE, stop=stop):
            kept: list[tuple[bytes, Headers]] = []
            size = 0
            for local in (after_time(entry) for entry, _ in page):
                letter = self._letters.get(local)
                if letter is None:
                    continue
                kept.append((local, letter.record.headers))
                size += letter.size
                if size >= LETTERS_BYTES:
                    yield self._renewed(kept, now)
                    kept, size = [], 0
            yield self._renewed(kept, now)
        self._went_round = True

    def _pages(self, table: str, *, stop: bytes | None = None) -> Iterator[list[tuple[bytes, bytes]]]:
        start = b""
        while page := list(islice(self._store.scan(table, start=start, stop=stop), STEP)):
            yield page
            start = page[-1][0] + b"\0"

    def _renewed(self, referring: Iterable[tuple[bytes, Headers]], now: float) -> list[tuple[int, Change]]:
        """The rows to write again for messages, given as local keys with headers; each with its partition."""
        renewed = []
        for local, headers in referring:
            change = reference_in(dict(headers), self._bucket, now)
            if change is not None and self._is_old(prefix_in(local) + change.key, now):
                renewed.append((split_store_key(local)[0], change))
        return renewed

    def _is_old(self, key: bytes, now: float) -> bool:
        """Whether there is no such row, or half of its retention is over."""
        time = self._staging.value(CLAIMS, key)
        return time is None or _seconds(time) <= now - self._retention / 2


def _waiting(page: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Headers]]:
    """Waiting messages with a reference, with their headers. Unreadable ones are reported elsewhere."""
    for local, data in page:
        if _DATAREF in data:
            with suppress(ValueError):
                yield local, read_message(data).headers


def _seconds(time: bytes) -> float:
    return time_in(time) / 1000
