"""How the topics of an application stand in the cluster, as far as a running lane can tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

import structlog

from streams.model.application import Application
from streams.ports import TP, Clock, Cluster, Identity, Reader

log = structlog.get_logger(__name__)

#: How long messages may be waited for that are behind a transaction that is still open, in seconds.
_IN_DOUBT = 5.0


def added_partitions(
    app: Application, lane: int, topics: Collection[str], identity: Identity
) -> Iterator[TP]:
    """The partitions above the application's number that a lane reads: of topics from outside alone. There
    others may write to any partition that there is; their records go on to the partitions of their keys.
    """
    layout = app.layout
    for topic in topics:
        if is_from_outside(app, topic):
            for partition in range(layout.partitions, identity.partitions.get(topic, 0)):
                if layout.lane_of(layout.home_of(partition)) == lane:
                    yield TP(topic, partition)


def is_from_outside(app: Application, topic: str) -> bool:
    """Whether others write a topic, and lanes read it."""
    route = app.routes.get(topic)
    return route is not None and route.outside


class TopicStanding:
    """Problems of a lane's topics.

    Attributes:
        gone: topics that the cluster does not have any more, each with since when that is known, in epoch
            seconds.
        partitions: of topics whose number of partitions is not the application's, theirs.
        late: of partitions that were opened here for the first time, the offset at which their log began,
            where that was above 0: what was before is deleted, and was not read here.
    """

    def __init__(self) -> None:
        self.gone: dict[str, float] = {}
        self.partitions: dict[str, int] = {}
        self.late: dict[TP, int] = {}

    def see(self, app: Application, topics: Iterable[str], identity: Identity, now: float) -> None:
        """Compare with what the cluster knows of these topics, and log what has changed."""
        self.lacks([topic for topic in topics if topic not in identity.topics], now)
        for topic in sorted(self.gone.keys() & identity.topics.keys()):
            del self.gone[topic]
            log.info("topic_is_back", topic=topic)
        expected = app.layout.partitions
        differ = {
            topic: number
            for topic, number in identity.partitions.items()
            if number < expected or (number > expected and not is_from_outside(app, topic))
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
        """The cluster does not have these topics."""
        for topic in sorted(set(topics) - self.gone.keys()):
            self.gone[topic] = now
            log.error("topic_gone", topic=topic, action="open lanes go on without it; none opens without it")

    def began(self, first: Mapping[TP, int]) -> None:
        """Partitions were opened for the first time, at these offsets."""
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
    """Questions of a worker's lanes about topics: they ask for the same ones, and share an answer."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked_at = 0.0
        self._asked: frozenset[str] = frozenset()
        self._answer: Identity | None = None

    async def look(self, topics: Collection[str], at_most: float) -> Identity:
        """The cluster's answer about topics, and maybe others, `at_most` so many seconds old. Raises
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

    Positions are read before ends, so that a message which a handled one has sent is not overlooked.
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
    """Between a position and the end may lie transaction markers alone, so the records are looked for."""
    await reader.assign(positions)
    counts: dict[str, int] = {}
    deadline = time.monotonic() + _IN_DOUBT
    while left := [tp for tp, end in ends.items() if reader.position(tp) < end]:
        if time.monotonic() > deadline:  # behind a transaction that is still open
            for tp in left:
                counts[tp.topic] = counts.get(tp.topic, 0) + 1
            break
        for batch in await reader.fetch(max_records=5000, timeout=0.2):
            if batch.records:
                counts[batch.tp.topic] = counts.get(batch.tp.topic, 0) + len(batch.records)
    return counts
