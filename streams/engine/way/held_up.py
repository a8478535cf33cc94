"""Tracks partitions blocked by another client's open transaction, and which client that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from streams.errors import ClusterUnavailable, TopicMismatch
from streams.model.policy.jumps import jump
from streams.ports import TP, Clock, Cluster, HeldUp, OpenTransaction

log = structlog.get_logger(__name__)

#: Seconds between checks.
LOOK_INTERVAL = 1.0
#: Seconds after which a blocked partition is reported. Transactions of lanes are shorter than that.
SAID_AFTER = 5.0


class Held(NamedTuple):
    """A partition that has been blocked since `since`, in epoch seconds. `by` is None until the cluster has
    answered.
    """

    at: HeldUp
    since: float
    by: OpenTransaction | None = None


class HeldUpPartitions:
    """Checks a lane's reader for blocked partitions, and asks the cluster only about those blocked for long.

    Attributes:
        partitions: partitions that are blocked now.
        looked: time of the last check, in epoch seconds. Durations end there, so that a clock change does not
            alter them.
    """

    def __init__(self, lane: int, held_up: Callable[[], Mapping[TP, HeldUp]], clock: Clock) -> None:
        self.partitions: dict[TP, Held] = {}
        self.looked = 0.0
        self._lane = lane
        self._held_up = held_up
        self._clock = clock
        self._said: set[TP] = set()

    def longest(self) -> float:
        """The longest time for which a partition has been blocked, in seconds; 0 if none is."""
        return max((self.looked - held.since for held in self.partitions.values()), default=0.0)

    def long(self) -> dict[TP, Held]:
        """The partitions that have been blocked for longer than a transaction of a lane takes."""
        held_up = sorted(self.partitions.items())
        return {tp: held for tp, held in held_up if self.looked - held.since >= SAID_AFTER}

    async def run(self, stopping: asyncio.Event, cluster: Cluster) -> None:
        """Check until the lane stops."""
        while not stopping.is_set():
            await self._clock.sleep(LOOK_INTERVAL)
            self._look()
            await self._ask(cluster)

    def _look(self) -> None:
        """Update the blocked partitions. A new open transaction in a partition starts a new duration."""
        now, before = self._clock.now(), self.partitions
        set_by, self.looked = jump(self.looked, now), now
        self.partitions = {
            tp: was._replace(at=at, since=was.since + set_by)
            if (was := before.get(tp)) is not None and was.at.first == at.first
            else Held(at, now)
            for tp, at in self._held_up().items()
        }
        for tp in sorted(self._said):
            if tp not in self.partitions or self.partitions[tp].by is None:
                self._said.discard(tp)
                log.info("partition_goes_on", lane=self._lane, topic=tp.topic, partition=tp.partition)

    async def _ask(self, cluster: Cluster) -> None:
        """Ask which clients' transactions block partitions for long, and log each once."""
        wanted = [tp for tp, held in self.long().items() if held.by is None]
        if not wanted:
            return
        try:
            found = await cluster.open_transactions(wanted)
        except (ClusterUnavailable, TopicMismatch) as error:
            log.warning("lane_cannot_ask", lane=self._lane, error=str(error), action="asked again")
            return
        for tp, by in found.items():
            held = self.partitions[tp]
            if by.first != held.at.first:
                continue  # the transaction that was seen has just ended
            self.partitions[tp] = held._replace(by=by)
            self._said.add(tp)
            log.warning(
                "partition_held_up",
                lane=self._lane,
                topic=tp.topic,
                partition=tp.partition,
                first_offset=by.first,
                behind=held.at.behind,
                seconds=round(self.looked - held.since, 1),
                transactional_id=by.transactional_id,
                producer_id=by.producer,
                producer_epoch=by.epoch,
            )
