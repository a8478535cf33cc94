"""Counts of a worker's lanes, for its metrics: dead letters, messages that wait, timers, sagas.

Counting takes time, and lanes share the loop: it goes on all the time, a little at a time, and what a scrape
gets is the last count of each lane. Sagas and dead letters are counted by their index.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import structlog

from streams.control.base.lane_rows import AT_ONCE, check_still_here, rows_of
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.overview.hours import Hours
from streams.control.overview.rates import in_background
from streams.control.sagas.indexes import LETTER_LISTS, LETTERS, index_of, read_letter_value
from streams.control.sagas.row_index import AT_ONCE as INDEXED_AT_ONCE
from streams.control.sagas.row_index import catch_up, counted, entries
from streams.control.sagas.saga_answers import SagaAnswer
from streams.control.sagas.saga_rows import (
    FAILED,
    SAGAS,
    SagaKind,
    first_saga,
    letter_of_saga,
    saga_of_key,
    stalled_sagas,
)
from streams.engine.staging.changes import MESSAGES, QUEUES, TIMERS
from streams.engine.staging.keys import name_in, split_store_key, time_in
from streams.engine.waiting.dead_letters.row import LetterState, decode_summary
from streams.engine.waiting.queue import handler_of, read_message, read_queue
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import split_row_key
from streams.ports import Store
from streams.units import DAY

log = structlog.get_logger(__name__)

#: Seconds between two rounds over the lanes.
INTERVAL = 5.0
#: The share of a core that counting takes at most; and indexing, after so many rows that had changed.
SHARE = 0.02
SHARE_BEHIND, BEHIND = 0.1, 5_000
#: Dead letters are counted by how long they have been there: up to so many seconds, or longer.
AGES = ((3600.0, "1h"), (DAY, "1d"), (7 * DAY, "7d"))
OLDER = "older"
#: Dead letters of a lane that are read for their errors: those of the rest are taken to be alike.
LETTERS_READ = 1000
#: Characters of an error that are kept.
ERROR_WIDTH = 300


@dataclass(slots=True)
class LaneSample:
    """A lane as it was `at` a time. Times in epoch seconds; the oldest of none is absent.

    Attributes:
        letters: by handler, state and age; see AGES.
        undecided_since: of each handler, when the oldest one failed that is not discarded.
        letter_errors: of the first LETTERS_READ of those, by handler, error and place: how many, and the text
            of one.
        waiting: messages that wait for a handler, by handler and why the first of their queue does.
        sagas: by saga, who conducts them, and status; `stalled` those of them that take too long.
        overdue_sagas: of those, how many do not wait for an operator; `held_sagas` how many of these have a
            dead letter, by its handler.
        failed_saga, overdue_saga: the oldest one that waits for an operator, and that is overdue without a
            dead letter.
    """

    at: float
    letters: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    letter_errors: dict[tuple[str, str, str], tuple[int, str]] = field(default_factory=dict)
    oldest_letter: dict[str, float] = field(default_factory=dict)
    undecided_since: dict[str, float] = field(default_factory=dict)
    waiting: Counter[tuple[str, str]] = field(default_factory=Counter)
    oldest_waiting: dict[str, float] = field(default_factory=dict)
    timers: int = 0
    overdue: int = 0
    sagas: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    stalled: Counter[str] = field(default_factory=Counter)
    overdue_sagas: int = 0
    held_sagas: Counter[str] = field(default_factory=Counter)
    failed_saga: SagaAnswer | None = None
    overdue_saga: SagaAnswer | None = None


def age_group(age: float) -> str:
    """The name of an age in seconds."""
    return next((name for bound, name in AGES if age <= bound), OLDER)


class Sampler:
    """Counts again and again what is in the worker's lanes."""

    def __init__(self, view: WorkerView) -> None:
        self.lanes: dict[int, LaneSample] = {}
        self.hours = Hours()
        self._view = view
        self._busy_since = 0.0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Count for as long as this is open."""
        return in_background(self._run(), "sampler")

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("sampling_failed", action="tried again; metrics have what was counted before")
            await asyncio.sleep(INTERVAL)

    async def round(self) -> None:
        """Count each lane that is open here once; those that have gone are forgotten."""
        self._busy_since = perf_counter()
        for lane in sorted(self._view.lanes):
            try:
                sample = self.lanes[lane] = await self._sample(lane)
                counts: dict[str, tuple[Mapping[Any, int], int]] = {
                    "sagas": (sample.sagas, 2),
                    "waiting": (sample.waiting, 0),
                    "letters": (sample.letters, 0),
                }
                for kind, (found, place) in counts.items():
                    self.hours.put(kind, sample.at, lane, _by(place, found))
            except Problem:  # it is not open, or has moved meanwhile: its owner counts it
                self.lanes.pop(lane, None)
            await self._pause()
        self.lanes = {lane: found for lane, found in self.lanes.items() if lane in self._view.lanes}

    async def _pause(self, share: float = 0.0) -> None:
        """Leave the loop to others for so long that counting keeps to its share."""
        await asyncio.sleep((perf_counter() - self._busy_since) * (1 / (share or SHARE) - 1))
        self._busy_since = perf_counter()

    async def _sample(self, lane: int) -> LaneSample:
        await self._index(lane)
        sample = LaneSample(self._view.now())
        await self._count_letters(sample, lane)
        await self._count_waiting(sample, lane)
        await self._count_timers(sample, lane)
        await self._count_sagas(sample, lane)
        return sample

    async def _index(self, lane: int) -> None:
        """Catch up with all that has changed."""
        store = readable_store(self._view, lane)

        looked = 0

        async def pause() -> None:
            nonlocal looked
            looked += INDEXED_AT_ONCE
            await self._pause(SHARE if looked < BEHIND else max(SHARE, SHARE_BEHIND))
            check_still_here(self._view, lane, store)

        await catch_up(store, index_of(self._view), pause)

    async def _count_letters(self, sample: LaneSample, lane: int) -> None:
        store = readable_store(self._view, lane)
        read = 0
        for state in LETTER_LISTS:
            for looked, found in enumerate(entries(store, LETTERS, state, width=0), start=1):
                handler, since = read_letter_value(found.value)
                sample.letters[handler, state, age_group(sample.at - since)] += 1
                _earlier(sample.oldest_letter, handler, since)
                if state != LetterState.DISCARDED:
                    _earlier(sample.undecided_since, handler, since)
                    if read < LETTERS_READ:
                        read += 1
                        _note_error(sample, store, found.local)
                await self._pause_after(looked, lane, store)

    async def _count_waiting(self, sample: LaneSample, lane: int) -> None:
        store = readable_store(self._view, lane)
        async for local, data in rows_of(self._view, QUEUES, lane, pause=self._pause):
            handler = handler_of(name_in(local)).decode("utf-8", "replace")
            with suppress(ValueError):  # of what cannot be read, which the lane says
                queue = read_queue(data)
                if not queue.waits:
                    continue
                sample.waiting[handler, str(queue.reason)] += queue.waits
                head = store.get(MESSAGES, local + queue.head.to_bytes(8, "big"))
                if head is not None:  # else its queue has changed since the row was read
                    _earlier(sample.oldest_waiting, handler, read_message(head).waits_since)

    async def _count_timers(self, sample: LaneSample, lane: int) -> None:
        async for _, data in rows_of(self._view, TIMERS, lane, pause=self._pause):
            sample.timers += 1
            sample.overdue += time_in(data) < sample.at * 1000

    async def _count_sagas(self, sample: LaneSample, lane: int) -> None:
        store = readable_store(self._view, lane)
        for (name, way, status), number in counted(store, SAGAS).items():
            sample.sagas[name, way, status] = number
        sample.failed_saga = await first_saga(self._view, lane, (FAILED,))
        for looked, (kind, status, local) in enumerate(stalled_sagas(self._view, store), start=1):
            sample.stalled[kind.name] += 1
            if status != FAILED:
                self._note_overdue(sample, kind, store, local)
            await self._pause_after(looked, lane, store)

    def _note_overdue(self, sample: LaneSample, kind: SagaKind, store: Store, local: bytes) -> None:
        """Count an overdue saga: by its dead letter, which is its cause, or by itself."""
        sample.overdue_sagas += 1
        if sample.letters and (letter := letter_of_saga(store, local)) is not None:
            sample.held_sagas[letter.handler] += 1
        elif sample.overdue_saga is None:
            partition, row = split_store_key(local)
            sample.overdue_saga = saga_of_key(self._view, kind, store, partition, split_row_key(row)[0])

    async def _pause_after(self, looked: int, lane: int, store: Store) -> None:
        if looked % AT_ONCE == 0:
            await self._pause()
            check_still_here(self._view, lane, store)


def _note_error(sample: LaneSample, store: Store, local: bytes) -> None:
    data = store.get(DEAD_LETTERS, local)
    with suppress(ValueError):  # of a later version: the page of dead letters says so
        if data is not None:  # else it has been settled since it was indexed
            letter = decode_summary(data)
            alike = letter.handler, letter.error_type, letter.place
            count, text = sample.letter_errors.get(alike, (0, letter.error_message[:ERROR_WIDTH]))
            sample.letter_errors[alike] = count + 1, text


def _by(place: int, counts: Mapping[Any, int]) -> Counter[str]:
    """Counts by what is at one place of their labels."""
    total: Counter[str] = Counter()
    for labels, count in counts.items():
        total[labels[place]] += count
    return total


def _earlier(times: dict[str, float], name: str, time: float) -> None:
    times[name] = min(times.get(name, time), time)
