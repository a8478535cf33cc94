"""Gives a worker's lanes to others while its machine prevents commits, and asks for them again later."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from streams.engine.life.host import LaneHost
from streams.model.policy.fitness import Fitness

log = structlog.get_logger(__name__)

#: Seconds between two checks.
LOOK = 5.0


async def hand_over(host: LaneHost, assignor: Any, membership: Any) -> None:
    """Check regularly until cancelled. `assignor` tells the group whether this worker is unfit, when
    `membership` joins again.
    """
    fitness = Fitness()
    while True:
        await asyncio.sleep(LOOK)
        changed = fitness.look(
            waited=host.waited_for_machine(),
            others=len(assignor.assigned.members) > 1,
            monotonic=time.monotonic(),
            wall=time.time(),
        )
        if not changed:
            continue
        assignor.unfit = not fitness.fit
        log.warning(
            "lanes_given_away" if assignor.unfit else "lanes_wanted_again",
            lanes=assignor.assigned.active,
            action="other workers take them" if assignor.unfit else "the group assigns them again",
        )
        membership.rejoin()
