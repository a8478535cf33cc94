"""Changes of topics: truncated, given partitions, deleted, created again. An operator then accepts them."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from streams.engine.life.lane import Lane
from streams.engine.life.positions.review import At, Standing, accept, standings
from streams.engine.life.state import LaneState
from streams.errors import (
    ClusterUnavailable,
    Fenced,
    LayoutMismatch,
    PositionLost,
    TopicMismatch,
    TransactionFailed,
)
from streams.model.layout import LANE
from streams.ports import TP
from streams.testing.log import LoggedRecord
from streams.testing.simulation.judge import Removed
from streams.testing.simulation.run import Part, Run

#: Seconds between the operator's checks.
LOOK = 3.0
#: Seconds within which lanes notice a changed topic.
NOTICED = 20.0
#: Errors after which the operator tries again.
PASSES = (ClusterUnavailable, TransactionFailed, Fenced, LayoutMismatch, TopicMismatch, TimeoutError)


def kinds(rng: Random, topics: tuple[str, ...], outside: str) -> Mapping[str, Callable[[], tuple[Any, ...]]]:
    """For each kind of step, a function that draws its arguments. `outside` is an external topic. The last
    argument is the number of seconds before an operator looks, except for "grow".
    """

    def topic() -> str:
        return rng.choice(topics)

    return {
        "recreate": lambda: (topic(), rng.choice((2.0, 20.0, 60.0))),
        "delete": lambda: (topic(), rng.choice((1.0, 8.0, 30.0)), rng.choice((2.0, 20.0, 60.0))),
        "grow": lambda: (outside, rng.choice((1, 2))),
        "cut": lambda: (outside, rng.choice(("handled", "all", "all")), rng.choice((2.0, 20.0))),
    }


#: The command that an error tells an operator to run.
_ACCEPT = re.compile("accept --topic ([^`]+)`")


class Topics(Part):
    """The changed topics of a run, and the operator."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._looks_from = 0.0
        self._without_lanes = False
        self._noticed_by = 0.0
        self._operator: asyncio.Task[None] | None = None
        #: Records that were removed while their transaction was open; it may still commit.
        self._open: list[LoggedRecord] = []
        #: Deleted topics that no operator has accepted yet. Lanes read nothing from their successors, even if
        #: a commit that was under way has left a position there.
        self._unaccepted: set[str] = set()
        #: Partitions that an operator is accepting, until the answer arrives. If the answer is lost, and the
        #: partition has no problem afterwards, it was accepted.
        self._told: dict[TP, Standing] = {}

    def missing(self) -> list[str]:
        """One entry while lanes may not have noticed a change yet."""
        gone = [each.record for each in self._open if each.visible]
        self._open = [each for each in self._open if not each.visible]
        self.run.removed += [Removed(record, unread=True) for record in gone if record is not None]
        return ["topics were changed just now"] if self.run.loop.time() < self._noticed_by else []

    def end_faults(self) -> None:
        """Create all missing topics again."""
        for topic in self.run.limits:
            self._make(topic)

    def do_cut(self, topic: str, how: str, attention: float) -> None:
        """Truncate a topic, as retention does: only handled records, or all."""
        run = self.run
        for log in run.cluster.logs_of(topic):
            stands = run.cluster.groups.get(run.app.layout.app_id, {}).get(log.tp, 0)
            before = stands if how == "handled" else log.end
            self._keep(topic, log.tp.partition, before)
            run.cluster.truncate(log.tp, before)
        self.watch(attention)

    def do_grow(self, topic: str, more: int) -> None:
        """Add partitions to an external topic."""
        cluster = self.run.cluster
        if topic in cluster.ids:
            cluster.create_topic(topic, len(cluster.logs_of(topic)) + more)

    def do_recreate(self, topic: str, attention: float) -> None:
        """Delete a topic, and create it again at once."""
        self.do_delete(topic, 0.0, attention)
        self._make(topic)

    def do_delete(self, topic: str, back: float, attention: float) -> None:
        """Delete a topic, and create it again after `back` seconds."""
        run = self.run
        if topic not in run.cluster.ids:
            return
        self._keep(topic)
        self._unaccepted.add(topic)
        self._without_lanes |= topic == run.app.layout.changelog(LANE)
        run.deleted[topic] = run.loop.time()
        run.cluster.delete_topic(topic)
        run.later(back, self._make, topic)
        self.watch(attention)

    def _make(self, topic: str) -> None:
        run = self.run
        if topic in run.limits and topic not in run.cluster.ids:
            one = topic.endswith((".dlq", "-announcements", "-operations-log"))
            run.cluster.create_topic(topic, 1 if one else run.plan.partitions)
            self._noticed_by = run.loop.time() + NOTICED

    def _keep(self, topic: str, partition: int | None = None, before: int | None = None) -> None:
        """Remember the records that are about to be removed, and which of them no lane has passed."""
        run = self.run
        positions = run.cluster.groups.get(run.app.layout.app_id, {})
        for record in run.cluster.visible(topic):
            if partition not in (None, record.partition) or (before is not None and record.offset >= before):
                continue
            stands = 0 if topic in self._unaccepted else positions.get(TP(topic, record.partition), 0)
            run.removed.append(Removed(record, unread=record.offset >= stands))
        if partition is None and before is None:
            entries = [each for log in run.cluster.logs_of(topic) for each in log.entries()]
            self._open += [each for each in entries if each.transaction and not each.visible]

    # -- the operator ---------------------------------------------------------------------------------

    def watch(self, attention: float) -> None:
        """Let an operator look after `attention` seconds, and resolve the problems that stop lanes."""
        self._looks_from = max(self._looks_from, self.run.loop.time() + attention)
        if self._operator is None:
            self._operator = self.run.spawn(self._operate())

    async def _operate(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if not self.run.is_quiet and self.run.loop.time() < self._looks_from:
                continue
            with suppress(*PASSES):
                if not await self._settle_problems():
                    await self._start_stopped()

    async def _settle_problems(self) -> bool:
        """Accept the changes for which lanes would stop. Returns whether there were any."""
        run = self.run
        if self._without_lanes:
            await self._accept_lanes()
        found: dict[str, list[Standing]] = defaultdict(list)
        for standing in await standings(run.app.layout, run.cluster):
            if standing.problem:
                found[standing.topic].append(standing)
            elif told := self._told.pop(TP(standing.topic, standing.partition), None):
                self._accepted(told)
        for topic, these in sorted(found.items()):
            run.note("accepts", topic=topic, why=these[0].problem)
            for each in these:
                at = At.AUTO
                if each.problem == "the group was reset":
                    recorded = each.recorded is not None and each.begin <= each.recorded <= each.end
                    at = At.RECORDED if recorded else At.AUTO
                self._told[TP(topic, each.partition)] = each
                await accept(run.app.layout, run.cluster, topic, [each.partition], at)
                self._accepted(self._told.pop(TP(topic, each.partition)))
            self._unaccepted.discard(topic)
            run.deleted[topic] = max(run.loop.time(), run.deleted.get(topic, 0.0))
        return bool(found)

    def _accepted(self, standing: Standing) -> None:
        for part in self.run.parts:
            part.accepted(standing.topic, [standing])

    async def _accept_lanes(self) -> None:
        """Accept a lane changelog that was created again. Only the group still has the lanes' positions."""
        layout, cluster, numbers = self.run.app.layout, self.run.cluster, range(self.run.plan.partitions)
        changelog = layout.changelog(LANE)
        if changelog not in cluster.ids:
            return
        self.run.note("accepts", topic=changelog, why="created again")
        await accept(layout, cluster, changelog, numbers)
        for topic in self.run.app.sources:
            for number in numbers if topic in cluster.ids else ():
                try:
                    await accept(layout, cluster, topic, [number], At.GROUP)
                except PositionLost:  # the group has no offset, or the log no longer has it
                    await accept(layout, cluster, topic, [number])
        self._without_lanes = False
        self._unaccepted -= set(self.run.app.sources)
        self.run.deleted[changelog] = self.run.loop.time()

    async def _start_stopped(self) -> None:
        """Restart workers with lanes that have stopped because of their position, since these stay closed
        until then. If the error says so, accept the topic first: only the local store knew the former one.
        """
        run = self.run
        for number, worker in enumerate(run.workers):
            errors = (
                []
                if worker is None
                else [lane.error for lane in worker.host.lanes.values() if has_stopped(lane)]
            )
            for topic in sorted({name for error in errors for name in _ACCEPT.findall(str(error))}):
                run.note("accepts", topic=topic, why="an error says so")
                await accept(run.app.layout, run.cluster, topic, range(run.plan.partitions))
                self._unaccepted.discard(topic)
                run.deleted[topic] = run.loop.time()
            if errors:
                run.note("starts_again", machine=number)
                run.do_restart(number, 1.0)


def has_stopped(lane: Lane) -> bool:
    """Whether a lane has closed with PositionLost, and waits for an operator."""
    return lane.state is LaneState.CLOSED and isinstance(lane.error, PositionLost)
