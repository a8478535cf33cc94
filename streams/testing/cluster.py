"""An in-memory fake of the parts of Kafka that a lane uses. It passes the same contract tests as Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from streams.errors import ClusterUnavailable
from streams.ports import TP, Commit, Identity, OpenTransaction
from streams.testing.broker import FakeBroker, Fault
from streams.testing.clients import FakeReader, FakeTransactions


class FakeCluster(FakeBroker):
    """Topics, transactional ids and group positions. Every request gives other tasks a turn, as networks do.

    `topics` are names with their numbers of partitions; `max_batch` is the largest record that a producer
    makes, in bytes, `limits` has the `max.message.bytes` of topics that take less, `max_unpacked` is what
    readers decompress a batch to; `now` is the time of records, in seconds since the epoch.
    """

    def transactions(self, transactional_id: str) -> FakeTransactions:
        """A producer that is not started yet."""
        return FakeTransactions(self, transactional_id)

    async def reader(self) -> FakeReader:
        """A reader with nothing assigned."""
        return FakeReader(self)

    async def committed(self, group: str, tps: Iterable[TP]) -> dict[TP, int]:
        """The group's committed positions; partitions without one are left out."""
        await self._question()
        positions = self.groups.get(group, {})
        return {tp: positions[tp] for tp in tps if tp in positions}

    async def commits(self, group: str, tps: Iterable[TP]) -> dict[TP, Commit]:
        """The group's committed positions with their notes; partitions without one are left out."""
        await self._question()
        return {tp: found for tp in tps if (found := self.commit_of(group, tp)) is not None}

    async def leader_epochs(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The epoch of each partition's present leader."""
        await self._question()
        return {tp: self.log(tp).epoch for tp in tps}

    async def epoch_ends(self, epochs: Mapping[TP, int]) -> dict[TP, int]:
        """The offset at which each log continues in a later epoch than the given one, or its end."""
        await self._question()
        found = {tp: self.log(tp).end_of_epoch(epoch) for tp, epoch in epochs.items()}
        return {tp: end for tp, end in found.items() if end is not None}

    async def begin_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The first offset still in each log."""
        await self._question()
        return {tp: self.log(tp).start for tp in tps}

    async def offsets_since(self, tps: Iterable[TP], since_ms: int) -> dict[TP, int]:
        """The first offset of each log since a time; those without one are left out."""
        await self._question()
        found = {tp: self.log(tp).first_since(since_ms) for tp in tps}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    async def identity(self, topics: Iterable[str]) -> Identity:
        """The ids of the cluster and of these topics; topics that it does not have are left out."""
        await self._question()
        there = [name for name in topics if name in self.ids]
        partitions = {name: len(self.logs_of(name)) for name in there}
        return Identity(self.id, {name: self.ids[name] for name in there}, partitions)

    async def end_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The high watermark of each log."""
        await self._question()
        return {tp: self.log(tp).end for tp in tps}

    async def open_transactions(self, tps: Iterable[TP]) -> dict[TP, OpenTransaction]:
        """The open transaction that began first in each partition; partitions without one are left out."""
        await self._question()
        return {tp: found for tp in tps if (found := self.first_open(tp)) is not None}

    async def _question(self) -> None:
        await asyncio.sleep(0)
        if self.take(Fault.UNAVAILABLE):
            raise ClusterUnavailable("injected: no answer")
