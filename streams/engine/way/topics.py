"""Problems of an application's topics in the cluster, as far as a running lane can tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

import structlog

from streams.model.application import Application
from streams.ports import TP, Clock, Cluster, Identity, Reader

log = structlog.get_logger(__name__)

#: How long to wait for messages behind a transaction that is still open, in seconds.
_IN_DOUBT = 5.0


def partitions_read(app: Application, lane: int, topics: Collection[str], identity: Identity) -> Iterator[TP]:
    """The partitions of topics that a lane reads. External topics may have more than the application: others
    may write to any partition, and lanes forward those records to the partitions of their keys. Sources may
    have fewer, too.
    """
    layout = app.layout
    for topic in topics:
        there = identity.partitions.get(topic, 0)
        least = 0 if app.wiring.is_source(topic) else layout.partitions
        most = there if least == 0 or is_from_outside(app, topic) else least
        for partition in range(max(least, most)):
            if layout.lane_of(layout.home_of(partition)) == lane:
                yield TP(topic, partition)


def is_from_outside(app: Application, topic: str) -> bool:
    """Whether a topic is external: others write it, and lanes read it."""
    route = app.routes.get(topic)
    return route is not None and route.outside


class TopicStanding:
    """Problems of a lane's topics.

    Attributes:
        gone: topics that the cluster no longer has, and when this was noticed, in epoch seconds.
        partitions: partition counts that differ from the application's, by topic. External topics may have
            more.
        late: partitions that began above offset 0 when the lane first opened them, with that offset. Earlier
            records had been deleted, and were not read.
    """

    def __init__(self) -> None:
        self.gone: dict[str, float] = {}
        self.partitions: dict[str, int] = {}
        self.late: dict[TP, int] = {}

    def see(self, app: Application, topics: Iterable[str], identity: Identity, now: float) -> None:
        """Compare topics with the cluster's `identity`, and log what has changed."""
        self.lacks([topic for topic in topics if topic not in identity.topics], now)
        for topic in sorted(self.gone.keys() & identity.topics.keys()):
            del self.gone[topic]
            log.info("topic_is_back", topic=topic)
        expected = app.layout.partitions
        differ = {
            topic: number
            for topic, number in identity.partitions.items()
            if not app.wiring.is_source(topic)
            and (number < expected or (number > expected and not is_from_outside(app, topic)))
        }
        for topic, number in sorted(differ.items()):
            if self.partitions.get(topic) != number:
                log.error(
                    "partitions_differ",
                    topic=topic,
                    partitions=number,
                    expected=expected,
                    action="a worker does not start like this: make the topic again with the right number",
                )
        self.partitions = differ

    def lacks(self, topics: Iterable[str], now: float) -> None:
        """Record and log topics that the cluster does not have."""
        for topic in sorted(set(topics) - self.gone.keys()):
            self.gone[topic] = now
            log.error("topic_gone", topic=topic, action="open lanes go on without it; none opens without it")

    def began(self, first: Mapping[TP, int]) -> None:
        """Record partitions that were opened for the first time, with their first offsets."""
        late = {tp: offset for tp, offset in first.items() if offset}
        if late:
            begins = {f"{tp.topic}[{tp.partition}]": offset for tp, offset in late.items()}
            log.warning(
                "log_begins_late",
                begins=begins,
                unread=sum(late.values()),
                action="what was before was deleted before it was opened",
            )
        self.late |= late


class TopicLooks:
    """Asks the cluster about topics for all lanes of a worker. They ask about the same ones, and share
    answers.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked_at = 0.0
        self._asked: frozenset[str] = frozenset()
        self._answer: Identity | None = None

    async def look(self, topics: Collection[str], at_most: float) -> Identity:
        """The cluster's answer about these topics, and maybe more, at most `at_most` seconds old. Raises
        ClusterUnavailable.
        """
        async with self._asking:
            now = self._clock.now()
            known = self._asked.issuperset(topics) and 0 <= now - self._asked_at <= at_most
            if self._answer is None or not known:
                self._answer, self._asked = None, frozenset(topics)
                self._answer, self._asked_at = await self._cluster.identity(topics), now
            return self._answer


async def unhandled_in(cluster: Cluster, group: str, tps: Collection[TP]) -> dict[str, int]:
    """How many messages of each topic the group has not committed yet; topics without any are left out.

    Positions are read before ends, so that messages sent by handlers in between are not overlooked.
    """
    positions = {**await cluster.begin_offsets(tps), **await cluster.committed(group, tps)}
    ends = await cluster.end_offsets(tps)
    behind = {tp: positions[tp] for tp in tps if positions[tp] < ends[tp]}
    if not behind:
        return {}
    reader = await cluster.reader()
    try:
        return await _count(reader, behind, {tp: ends[tp] for tp in behind})
    finally:
        await reader.close()


async def _count(reader: Reader, positions: dict[TP, int], ends: dict[TP, int]) -> dict[str, int]:
    """Count records by topic. Offsets are not enough, because transaction markers have offsets, too."""
    await reader.assign(positions)
    counts: dict[str, int] = {}
    deadline = time.monotonic() + _IN_DOUBT
    while left := [tp for tp, end in ends.items() if reader.position(tp) < end]:
        if time.monotonic() > deadline:  # blocked by a transaction that is still open: count 1 each
            for tp in left:
                counts[tp.topic] = counts.get(tp.topic, 0) + 1
            break
        for batch in await reader.fetch(max_records=5000, timeout=0.2):
            if batch.records:
                counts[batch.tp.topic] = counts.get(batch.tp.topic, 0) + len(batch.records)
    return counts
