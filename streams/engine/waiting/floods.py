"""Pause a source when most of its records become dead letters, because its format or its map is wrong. Half a
million such records are one problem, and not half a million dead letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from streams.engine.staging.keys import prefix_of
from streams.engine.waiting.operations.pauses import set_by_lane
from streams.engine.waiting.waiting import Waiting
from streams.model.operations import HandlerPause, PauseState
from streams.ports import TP

log = structlog.get_logger(__name__)

#: A lane pauses a source if about MANY of its records become dead letters within so many seconds, and these
#: are more than one in ONE_IN of the records that it read.
MANY, WITHIN, ONE_IN = 100, 60.0, 10
#: Who has paused the handler.
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
            topic: sorted({prefix_of(layout.home_of(tp.partition)) for tp in partitions if tp.topic == topic})
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
        gate = self._waiting.gates[handler]
        prefixes = [prefix for prefix in self._homes[topic] if prefix not in gate.pauses]
        if not prefixes:
            return False
        pause = HandlerPause(PauseState.PAUSED, LANE, why, int(now * 1000))
        for prefix in prefixes:
            set_by_lane(self._waiting, gate, prefix, pause, "pause", now, asked=now)
        log.error(
            "source_paused",
            topic=topic,
            handler=handler,
            why=why,
            action="see the errors of its dead letters (`steadfaust dlq groups`), correct the format or the"
            f" map, then `steadfaust handler resume {handler}`, before the topic's retention is over",
        )
        return True
