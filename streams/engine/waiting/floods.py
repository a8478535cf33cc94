"""Pause a source of which most records become dead letters: its format is not the declared one, or the map
does not fit. Half a million such records are one problem, and nobody wants as many dead letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from streams.engine.staging.keys import prefix_of
from streams.engine.waiting.operations.pauses import in_log, set_pause
from streams.engine.waiting.waiting import Waiting
from streams.model.envelope import rfc3339
from streams.model.operations import HandlerDone, HandlerPause, PauseState
from streams.ports import TP

log = structlog.get_logger(__name__)

#: A lane pauses a source when about this many of its records became dead letters when they were read, within
#: this many seconds, and these are more than one in so many of those that were read.
MANY, WITHIN, ONE_IN = 100, 60.0, 10
#: By whom.
LANE = "lane"


class _Count(NamedTuple):
    """What had been read of a source, and dead-lettered, at a time in epoch seconds."""

    at: float
    taken: int
    dead: int


class Floods:
    """A periodic task. While a source is paused the lane does not read it (`Intake`), so nothing piles up."""

    def __init__(self, waiting: Waiting, taken: Mapping[str, int], partitions: Iterable[TP]) -> None:
        """`taken` has the number of records that were read, by topic; `partitions` are those of the lane."""
        self._waiting = waiting
        self._taken = taken
        self._dead: Counter[str] = waiting.letters.of_sources
        layout = waiting.staging.app.layout
        self._sources = waiting.staging.app.wiring.sources()
        self._homes = {
            topic: sorted({layout.home_of(tp.partition) for tp in partitions if tp.topic == topic})
            for topic in self._sources
        }
        self._since: dict[str, _Count] = {}

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Stage pauses at `now`, in epoch seconds. True if there were any."""
        del room  # a pause needs none
        paused = False
        for topic, source in self._sources.items():
            count = _Count(now, self._taken.get(topic, 0), self._dead[topic])
            since = self._since.setdefault(topic, count)
            taken, dead = count.taken - since.taken, count.dead - since.dead
            if dead >= MANY and dead * ONE_IN > taken:
                why = f"{dead} of {taken} records became dead letters"
                paused |= self._pause(topic, source.handler.name, why, now)
            elif 0 <= now - since.at < WITHIN:
                continue
            self._since[topic] = count
        return paused

    def _pause(self, topic: str, handler: str, why: str, now: float) -> bool:
        waiting, at = self._waiting, rfc3339(now)
        gate = waiting.gates[handler]
        numbers = [number for number in self._homes[topic] if prefix_of(number) not in gate.pauses]
        if not numbers:
            return False
        pause = HandlerPause(PauseState.PAUSED, LANE, why, int(now * 1000))
        for number in numbers:
            done = HandlerDone(
                operation="pause",
                id="",
                handler=handler,
                partition=number,
                who=LANE,
                why=why,
                asked_at=at,
                at=at,
                result=str(pause.state),
                state=str(pause.state),
            )
            record = in_log(waiting.staging, handler.encode(), done)
            waiting.staging.append(number, [set_pause(handler, pause)], [record])
            gate.set_pause(prefix_of(number), pause)
        log.error(
            "source_paused",
            topic=topic,
            handler=handler,
            why=why,
            action="see the errors of its dead letters (`steadfaust dlq groups`), correct the format or the"
            f" map, then `steadfaust handler resume {handler}`, before the topic's retention is over",
        )
        return True
