"""Watches a worker's lanes: says which of them stand still, and what they stand at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from operator import attrgetter

import structlog

from streams.engine.life.lane import Lane
from streams.engine.life.state import LaneState
from streams.engine.waiting.gate import HandlerGate
from streams.engine.way.measures import LaneMeasures
from streams.ports import Clock

log = structlog.get_logger(__name__)

#: A lane with work that has committed nothing for this long is stuck, in seconds.
STUCK_AFTER = 30.0
#: Between two looks, in seconds.
LOOK_INTERVAL = 5.0


class Watchdog:
    """Looks by itself, so that the log knows of a stall that nobody has asked for."""

    def __init__(self, lanes: Mapping[int, Lane], clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        self._stalled: set[Lane] = set()
        self._to_recover: dict[Lane, int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL)
            self.look()

    def stuck(self) -> list[Lane]:
        """Lanes that have work and make no progress, or that have given up."""
        now = self._clock.now()
        return [
            lane
            for lane in self._lanes.values()
            if lane.state in (LaneState.QUARANTINED, LaneState.CLOSED)
            or ((lane.backlog or lane.state is not LaneState.OPEN) and now - lane.last_progress > STUCK_AFTER)
        ]

    def look(self) -> None:
        """Log each lane that has come to a stall since the last look, and each that goes on. One that has
        records to recover, and has read some since, does not stand still.
        """
        before = self._to_recover
        left = {lane: lane.measures.to_recover for lane in self._lanes.values()}
        self._to_recover = {lane: records for lane, records in left.items() if records}
        reading = {lane for lane, records in self._to_recover.items() if records < before.get(lane, inf)}
        stalled = set(self.stuck()) - reading
        for lane in sorted(stalled - self._stalled, key=attrgetter("number")):
            log.error(
                "lane_stalled",
                lane=lane.number,
                state=str(lane.state),
                seconds=round(self._clock.now() - lane.last_progress, 1),
                backlog=lane.backlog,
                stands_at=stands_at(lane.measures, lane.gates.values()),
                error=None if lane.error is None else repr(lane.error),
            )
        for lane in sorted(self._stalled - stalled, key=attrgetter("number")):
            if self._lanes.get(lane.number) is lane:
                log.info("lane_goes_on", lane=lane.number)
        self._stalled = stalled


def stands_at(measures: LaneMeasures, gates: Iterable[HandlerGate]) -> str:
    """The reason why a lane waits, if it is known: a transaction, or handlers. Empty: unknown."""
    if measures.in_transaction:
        return "a transaction"
    running = {gate.handler: gate.under_way for gate in gates if gate.under_way}
    return ", ".join(f"{handler} ({number} keys)" for handler, number in sorted(running.items()))
