"""Watches a worker's lanes: finds those that make no progress, and what they wait for."""

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

#: Seconds without progress after which a lane that has work, or is not open, counts as stuck.
STUCK_AFTER = 30.0
#: Seconds between two checks.
LOOK_INTERVAL = 5.0


class Watchdog:
    """Checks the lanes regularly, so that a stall is logged even if nobody asks for the state."""

    def __init__(self, lanes: Mapping[int, Lane], clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        self._stalled: set[Lane] = set()
        self._to_recover: dict[Lane, int] = {}

    async def run(self) -> None:
        """Check regularly until cancelled."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL)
            self.look()

    def stuck(self) -> list[Lane]:
        """Lanes that have given up, or make no progress with their work or their opening."""
        now = self._clock.now()
        return [
            lane
            for lane in self._lanes.values()
            if lane.state in (LaneState.QUARANTINED, LaneState.CLOSED)
            or ((lane.backlog or lane.state is not LaneState.OPEN) and now - lane.last_progress > STUCK_AFTER)
        ]

    def look(self) -> None:
        """Log each lane that has stalled since the last check, and each that goes on. A lane that recovers
        counts as stalled only if it has read no records since then.
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
    """What a lane waits for: a transaction, or running handlers. Empty if unknown."""
    if measures.in_transaction:
        return "a transaction"
    running = {gate.handler: gate.under_way for gate in gates if gate.under_way}
    return ", ".join(f"{handler} ({number} keys)" for handler, number in sorted(running.items()))
