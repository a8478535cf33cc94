"""The partitions that a lane reads, and those among them that it holds back for now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

import structlog

from streams.errors import ClusterUnavailable, TopicMismatch
from streams.ports import NO_EPOCH, NO_OFFSETS, TP, Cluster, Reader

log = structlog.get_logger(__name__)


class Stretch(NamedTuple):
    """The unread offsets of a partition that is held back: from `position` to `end`, `end` excluded."""

    position: int
    end: int


class Sources:
    """The reader of a lane and its positions, from one opening to the next.

    Attributes:
        reader: reads the partitions that are not held back.
        partitions: all partitions of the lane.
        unread: ends of the partitions that the lane writes itself, and had not read completely when it
            opened.
    """

    def __init__(
        self,
        reader: Reader,
        partitions: Collection[TP],
        topic_ids: Mapping[str, str],
        unread: Mapping[TP, int],
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """`topic_ids` are the ids by which the reader fetches topics. `epochs` are the known leader epochs of
        what was read before.
        """
        self.reader = reader
        self.partitions = frozenset(partitions)
        self.unread = unread
        self._topic_ids = topic_ids
        self._epochs = dict(epochs)
        #: Partitions that are held back. The reader does not learn their ends, so `look` asks the cluster.
        self._stretches: dict[TP, Stretch] = {}

    @property
    def held_back(self) -> Set[TP]:
        """The partitions that are not read for now."""
        return self._stretches.keys()

    def behind(self) -> dict[TP, int]:
        """Number of unread offsets by partition, by the last known ends."""
        held_back = {tp: max(0, each.end - each.position) for tp, each in self._stretches.items()}
        return {**self.reader.behind_by_partition(), **held_back}

    def epoch(self, tp: TP) -> int:
        """The latest leader epoch from which a partition was read, also by former openings: they may have
        handled messages above the position, in a later epoch than this opening has reached. NO_EPOCH if
        unknown.
        """
        return max(self.reader.epoch(tp), self._epochs.get(tp, NO_EPOCH))

    async def hold_back(self, tps: frozenset[TP]) -> None:
        """Stop reading these partitions, and read all others."""
        before, behind = self._stretches, self.behind()
        at = {tp: before[tp].position if tp in before else self.reader.position(tp) for tp in self.partitions}
        if tps - before.keys():
            log.warning(
                "reading_held_back",
                held=_named(tps),
                action="queue_long says for which key, source_paused and handler_paused for which source",
            )
        if released := before.keys() - tps:
            log.info("reading_goes_on", read=_named(released))
        self._stretches = {tp: Stretch(at[tp], at[tp] + behind.get(tp, 0)) for tp in tps}
        positions = {tp: offset for tp, offset in at.items() if tp not in tps}
        self._epochs |= {tp: epoch for tp in self.partitions if (epoch := self.epoch(tp)) != NO_EPOCH}
        await self.reader.assign(positions, self._topic_ids, self._epochs)

    async def look(self, cluster: Cluster) -> None:
        """Update the ends of partitions that are held back. After an error, the next call asks again."""
        if not self._stretches:
            return
        try:
            ends = await cluster.end_offsets(list(self._stretches))
        except (ClusterUnavailable, TopicMismatch) as error:
            log.warning(
                "ends_not_known", error=str(error), action="the lag keeps its last value; asked again"
            )
            return
        for tp in ends.keys() & self._stretches.keys():  # some may have been released meanwhile
            self._stretches[tp] = self._stretches[tp]._replace(end=ends[tp])


def _named(tps: Iterable[TP]) -> list[str]:
    return sorted(f"{topic}[{number}]" for topic, number in tps)
