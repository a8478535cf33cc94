"""The partitions that a lane reads, and those of them that it reads no further for now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

import structlog

from streams.errors import ClusterUnavailable, TopicMismatch
from streams.ports import NO_EPOCH, NO_OFFSETS, TP, Cluster, Reader

log = structlog.get_logger(__name__)


class Stretch(NamedTuple):
    """The part of a log that is not read, as offsets: from one to before the other."""

    position: int
    end: int


class Sources:
    """The reader of a lane and its positions, between one opening and the next.

    Attributes:
        reader: reads the partitions that are not held back.
        partitions: all of them.
        unread: the ends of partitions of which the lane had not read all when it opened, and writes itself.
    """

    def __init__(
        self,
        reader: Reader,
        partitions: Collection[TP],
        topic_ids: Mapping[str, str],
        unread: Mapping[TP, int],
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """`topic_ids` are those by which the reader reads topics, `epochs` the leader epochs of what was read
        before, as far as known.
        """
        self.reader = reader
        self.partitions = frozenset(partitions)
        self.unread = unread
        self._topic_ids = topic_ids
        self._epochs = dict(epochs)
        #: No reader reads these, so the cluster is asked for their ends.
        self._stretches: dict[TP, Stretch] = {}

    @property
    def held_back(self) -> Set[TP]:
        """The partitions that are read no further."""
        return self._stretches.keys()

    def behind(self) -> dict[TP, int]:
        """Offsets that are not read, by partition, as the brokers gave the ends last."""
        held_back = {tp: max(0, each.end - each.position) for tp, each in self._stretches.items()}
        return {**self.reader.behind_by_partition(), **held_back}

    def epoch(self, tp: TP) -> int:
        """The latest leader epoch of what was read of a partition, by former openings, too: this one reads
        again what is below messages that were handled above the position. NO_EPOCH when unknown.
        """
        return max(self.reader.epoch(tp), self._epochs.get(tp, NO_EPOCH))

    async def hold_back(self, tps: frozenset[TP]) -> None:
        """Read these no further, and all others again."""
        before, behind = self._stretches, self.behind()
        at = {tp: before[tp].position if tp in before else self.reader.position(tp) for tp in self.partitions}
        if tps - before.keys():
            log.warning("reading_held_back", held=_named(tps), action="queue_long says for which key")
        if released := before.keys() - tps:
            log.info("reading_goes_on", read=_named(released))
        self._stretches = {tp: Stretch(at[tp], at[tp] + behind.get(tp, 0)) for tp in tps}
        positions = {tp: offset for tp, offset in at.items() if tp not in tps}
        self._epochs |= {tp: epoch for tp in self.partitions if (epoch := self.epoch(tp)) != NO_EPOCH}
        await self.reader.assign(positions, self._topic_ids, self._epochs)

    async def look(self, cluster: Cluster) -> None:
        """Ask for the ends of what is held back; after no answer, the next time again."""
        if not self._stretches:
            return
        try:
            ends = await cluster.end_offsets(list(self._stretches))
        except (ClusterUnavailable, TopicMismatch) as error:
            log.warning(
                "ends_not_known", error=str(error), action="the lag keeps its last value; asked again"
            )
            return
        for tp in ends.keys() & self._stretches.keys():  # it may be read again by now
            self._stretches[tp] = self._stretches[tp]._replace(end=ends[tp])


def _named(tps: Iterable[TP]) -> list[str]:
    return sorted(f"{topic}[{number}]" for topic, number in tps)
