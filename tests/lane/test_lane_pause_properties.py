"""Whoever pauses, resumes or drains whatever, wherever and however often, among failures, crashes and fences:
nothing is tried where a handler is held, and in the end each message is handled once, in its order.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from lane_pausing import commanded, states
from test_lane_desk_properties import FinerHoldingLanes
from test_lane_properties import Lanes
from test_lane_retry_properties import AsyncRetryingLanes, FinerRetryingLanes, RetryingLanes

from streams.model.operations import HandlerCommand
from streams.operator.pauses import read_pause
from streams.staging.changes import HANDLERS
from streams.staging.keys import prefix_of, split_store_key
from tests.effort import examples

HANDLERS_OF = ("bench.count", "bench.tally", "bench.settle")


class Pausers(Lanes):
    """They ask for anything at any time, of some partitions only or twice at once."""

    #: Whether the first handler has begun already when it is asked how it fares.
    begins_earlier: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.commands = count()
        self.tried_while_held: list[tuple[str, str]] = []

    @rule(
        handler=st.sampled_from(HANDLERS_OF),
        kind=st.sampled_from(
            [HandlerCommand.PAUSE, HandlerCommand.PAUSE, HandlerCommand.DRAIN, HandlerCommand.RESUME]
        ),
        partitions=st.sets(st.integers(0, 3), min_size=1),
        everywhere=st.booleans(),
        twice=st.booleans(),
    )
    def command(
        self, handler: str, kind: HandlerCommand, partitions: set[int], *, everywhere: bool, twice: bool
    ) -> None:
        name = f"command-{next(self.commands)}"
        chosen = None if everywhere else sorted(partitions)
        posts = commanded(self.world, kind, handler, operation_id=name, partitions=chosen)
        self.run(self.world.post(*posts, *(posts if twice else [])))

    def begins(self, handler: str, key: str) -> None:
        """Every lane that may have let it begin holds the handler: then none may have."""
        partition = self.world.app.layout.partition_of(key.encode())
        number = self.world.app.layout.lane_of(partition)
        lanes = [
            worker.running.lane
            for (lane, _), worker in self.workers.items()
            if lane == number and worker.running is not None and not worker.running.task.done()
        ]
        gates = [gate for lane in lanes if (gate := lane.gates.get(f"bench.{handler}")) is not None]
        if gates and all(prefix_of(partition) in gate.held for gate in gates):
            self.tried_while_held.append((handler, key))

    def fare(self, handler: str, event: Any) -> None:
        if not (self.begins_earlier and handler == "count"):
            self.begins(handler, event.k)
        super().fare(handler, event)  # type: ignore[misc]

    @invariant()
    def nothing_is_tried_where_a_handler_is_held(self) -> None:
        assert self.tried_while_held == []

    @invariant()
    def gates_of_idle_lanes_are_what_their_rows_say(self) -> None:
        for worker in self.workers.values():
            running = worker.running
            if running is None or running.task.done() or running.lane.state != "open":
                continue
            lane = running.lane
            if lane.backlog or lane.store is None:
                continue
            rows = {local: read_pause(data) for local, data in lane.store.scan(HANDLERS)}
            known = {
                prefix + name.encode(): pause
                for name, gate in lane.gates.items()
                for prefix, pause in gate.pauses.items()
            }
            assert known == rows, sorted(map(split_store_key, known.keys() ^ rows.keys()))

    async def until_done(self) -> None:
        world = self.world
        for handler in HANDLERS_OF:
            name = f"end-{next(self.commands)}"
            await world.post(*commanded(world, HandlerCommand.RESUME, handler, operation_id=name))
        await world.settled(world.app.layout.operations)
        await super().until_done()

    async def check(self) -> None:
        await super().check()
        for handler in HANDLERS_OF:
            assert await states(self.world, handler) == {}


class PausedLanes(Pausers, RetryingLanes):
    """Among handlers that fail."""


class AsyncPausedLanes(Pausers, AsyncRetryingLanes):
    """And that take their time."""

    begins_earlier = True

    async def ask(self, key: str, i: int) -> None:
        self.begins("count", key)
        await asyncio.sleep(0)
        await super().ask(key, i)


class FinerPausedLanes(AsyncPausedLanes, FinerRetryingLanes):
    """And order by less than the key."""


class OperatedPausedLanes(AsyncPausedLanes, FinerHoldingLanes):
    """And with dead letters that hold others, and are replayed and discarded."""


for machine in (PausedLanes, AsyncPausedLanes, FinerPausedLanes, OperatedPausedLanes):
    machine.TestCase.settings = settings(
        max_examples=examples(30),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestPausedLanes = PausedLanes.TestCase
TestAsyncPausedLanes = AsyncPausedLanes.TestCase
TestFinerPausedLanes = FinerPausedLanes.TestCase
TestOperatedPausedLanes = OperatedPausedLanes.TestCase
