"""The objects that messages refer to: a row for each, in the lane that read or wrote it (docs/adr/0010).

The sweeper deletes what no row names, so a row stays while anything may follow the reference: the message in
its topic, a repetition of it, a timer, a waiting row, a dead letter. Each of these writes the row anew with
its own time, and so does housekeeping for what still waits and for dead letters that are still kept; a row is
old when all of them have gone.
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

#: Rows looked at in one step: a few milliseconds.
STEP = 200
#: Of dead letters, whose rows may be large, no more in one step than have so many bytes.
LETTERS_BYTES = MIB
#: From one round over all rows to the next, in seconds.
PAUSE = 600.0

_DATAREF = DATAREF.encode()


class References:
    """A chore: the rows of a lane's references, in bounded steps. A round goes first over what waits and
    over dead letters and makes their rows new, then over all rows and removes the old ones. So none that is
    needed is old when it comes up.
    """

    def __init__(self, letters: DeadLetters, bucket: str) -> None:
        """`bucket` is where our objects are. A row is kept for `claim_retention` from the time in it."""
        self._letters = letters
        self._staging = letters.staging
        self._store = letters.staging.store
        self._bucket = bucket
        self._retention = letters.staging.app.lane_options.claim_retention
        self._round: Iterator[list[tuple[int, Change]]] = iter(())
        self._next = 0.0
        self._went_round = False

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do a little at `now`, epoch seconds. True when something was staged."""
        del room  # a step has its own bound, and outages must not let rows grow old
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
        """A row is as young as its dead letter, or younger, so after the first round only letters count that
        are older than any row may be: those that others wait behind, or that are being replayed. The first
        goes over all: some may have been made by a worker without an object store, which wrote no rows.
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
        """The rows that need to be written again for what has these headers, by local keys."""
        renewed = []
        for local, headers in referring:
            change = reference_in(dict(headers), self._bucket, now)
            if change is not None and self._is_old(prefix_in(local) + change.key, now):
                renewed.append((split_store_key(local)[0], change))
        return renewed

    def _is_old(self, key: bytes, now: float) -> bool:
        """Whether there is no such row, or half of its time is over."""
        time = self._staging.value(CLAIMS, key)
        return time is None or _seconds(time) <= now - self._retention / 2


def _waiting(page: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Headers]]:
    """Messages that wait and refer to something, with their headers; the lane says which it cannot read."""
    for local, data in page:
        if _DATAREF in data:
            with suppress(ValueError):
                yield local, read_message(data).headers


def _seconds(time: bytes) -> float:
    return time_in(time) / 1000
