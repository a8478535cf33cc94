"""Partitions that a lane reads no further for now: from where it reads on, and how much waits there."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

import structlog

from streams.errors import ClusterUnavailable, TopicMismatch
from streams.ports import TP, Cluster

log = structlog.get_logger(__name__)


class Stretch(NamedTuple):
    """What is not read of a log, as offsets: from one to before the other."""

    position: int
    end: int


class Aside:
    """The partitions that are put aside. No reader reads them, so the cluster is asked for their ends."""

    def __init__(self) -> None:
        self._stretches: dict[TP, Stretch] = {}

    @property
    def partitions(self) -> Set[TP]:
        """Which they are."""
        return self._stretches.keys()

    def replace(self, stretches: Mapping[TP, Stretch]) -> None:
        """Put these aside in place of those before."""
        self._stretches = dict(stretches)

    def position(self, tp: TP) -> int | None:
        """From where a partition is read on; None: it is not put aside."""
        return stretch.position if (stretch := self._stretches.get(tp)) else None

    def behind(self) -> dict[TP, int]:
        """Offsets that are not read, as the cluster told the ends last."""
        return {tp: max(0, each.end - each.position) for tp, each in self._stretches.items()}

    async def look(self, cluster: Cluster) -> None:
        """Ask for the ends; a cluster that does not answer is asked again the next time."""
        if not self._stretches:
            return
        try:
            ends = await cluster.end_offsets(list(self._stretches))
        except (ClusterUnavailable, TopicMismatch) as error:
            log.warning("ends_not_known", error=str(error), action="lag is that of before; asked again")
            return
        for tp in ends.keys() & self._stretches.keys():  # it may be read again by now
            self._stretches[tp] = self._stretches[tp]._replace(end=ends[tp])
