"""The connections of one worker to Kafka."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from streams.brokers import READ, Bootstrap
from streams.kafka.clients import KafkaOptions
from streams.kafka.metadata import Metadata
from streams.kafka.reader import KafkaReader
from streams.kafka.sieve import Sieve
from streams.kafka.transactions.limits import BatchLimits
from streams.kafka.transactions.producer import TransactionalProducer
from streams.ports import TP, Commit, Identity, OpenTransaction, Transactions
from streams.units import KIB, MIB


class KafkaCluster:
    """Makes producers and readers for lanes, and answers their questions. One for each worker.

    `bootstrap` is host:port of some brokers, separated by commas.
    """

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions | None = None) -> None:
        self._bootstrap = bootstrap
        self._options = options or KafkaOptions()
        self._metadata = Metadata(bootstrap, self._options)
        self._starting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closing: set[asyncio.Task[None]] = set()
        #: What topics have turned out to take, in bytes: batches for them are packed smaller.
        self._limits = BatchLimits()

    def transactions(self, transactional_id: str) -> Transactions:
        """A producer that is not started yet."""
        return TransactionalProducer(
            self._bootstrap,
            transactional_id,
            self._options,
            starting=self._starting[transactional_id],
            closing=self._closing,
            limits=self._limits,
        )

    async def reader(self) -> KafkaReader:
        """A connected reader with nothing assigned. Raises ClusterUnavailable."""
        reader = KafkaReader(self._bootstrap, self._options, self._metadata.log_range)
        await reader.start()
        return reader

    async def sieving_reader(self, wanted: tuple[bytes, ...]) -> tuple[KafkaReader, Sieve]:
        """A connected reader that reads only the batches with one of some texts in them, in small fetches:
        lanes share its event loop. Raises ClusterUnavailable.
        """
        options = replace(self._options, max_fetch=2 * MIB, metadata_timeout=READ)
        sieve = Sieve(options.max_unpacked, wanted=wanted)
        reader = KafkaReader(self._bootstrap, options, self._metadata.log_range, sieve)
        await reader.start()
        return reader, sieve

    async def page_reader(self, wanted: tuple[bytes, ...]) -> KafkaReader:
        """A connected reader for a page of records, of those batches that have one of some texts in them if
        there are any, in small fetches. Raises ClusterUnavailable.
        """
        options = replace(
            self._options, max_fetch=2 * MIB, max_partition_fetch=256 * KIB, metadata_timeout=READ
        )
        isolation = Sieve(options.max_unpacked, wanted=wanted) if wanted else None
        reader = KafkaReader(self._bootstrap, options, self._metadata.log_range, isolation)
        await reader.start()
        return reader

    async def committed(self, group: str, tps: Iterable[TP]) -> dict[TP, int]:
        """The group's committed positions; partitions without one are left out.

        Ask only after the lane's transactional id is initialised, which waits for the transaction before
        it: one that is still open, or whose commit has just returned, may not show here yet. Raises
        ClusterUnavailable.
        """
        return await self._metadata.committed(group, tps)

    async def commits(self, group: str, tps: Iterable[TP]) -> dict[TP, Commit]:
        """The same with their notes."""
        return await self._metadata.commits(group, tps)

    async def leader_epochs(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The epoch of each partition's present leader. Raises as `begin_offsets` does."""
        return await self._metadata.leader_epochs(tps)

    async def epoch_ends(self, epochs: Mapping[TP, int]) -> dict[TP, int]:
        """Where each log goes on in a later epoch than this one, or ends. Raises as `begin_offsets` does."""
        return await self._metadata.epoch_ends(epochs)

    async def begin_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The first offset still in each log. Raises TopicMismatch or ClusterUnavailable."""
        return await self._metadata.begin_offsets(tps)

    async def offsets_since(self, tps: Iterable[TP], since_ms: int) -> dict[TP, int]:
        """The offset of the first record since a time, in epoch ms. Raises as `begin_offsets` does."""
        return await self._metadata.offsets_since(tps, since_ms)

    async def identity(self, topics: Iterable[str]) -> Identity:
        """The ids of the cluster and of these topics, as one broker knows them. Raises ClusterUnavailable."""
        return await self._metadata.identity(topics)

    async def end_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The high watermark of each log, not the last stable offset. Raises as `begin_offsets` does."""
        return await self._metadata.end_offsets(tps)

    async def open_transactions(self, tps: Iterable[TP]) -> dict[TP, OpenTransaction]:
        """The open transaction that began first in each partition. Raises as `begin_offsets` does."""
        return await self._metadata.open_transactions(tps)

    async def close(self) -> None:
        """Close what the lanes share, and wait for discarded producers to close. Readers have owners."""
        await self._metadata.close()
        if self._closing:
            await asyncio.wait(self._closing)
