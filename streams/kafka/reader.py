"""A read_committed reader of chosen partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from time import monotonic

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from streams.brokers import Bootstrap
from streams.errors import ClusterUnavailable, PositionLost
from streams.kafka.clients import KafkaOptions, ask, close_within, require_partitions
from streams.kafka.fetch_sessions import Bounds
from streams.kafka.fetch_sources import Place
from streams.kafka.fetcher import Fetcher
from streams.kafka.log_offsets import STABLE_END, offsets_at
from streams.kafka.partition_records import Isolation
from streams.kafka.topic_ids import id_bytes
from streams.ports import NO_EPOCH, NO_IDS, NO_OFFSETS, TP, Batch, HeldUp

LogRange = Callable[[TP], Awaitable[tuple[int, int]]]


class KafkaReader:
    """Reads assigned partitions, outside any group, and commits nothing. Use it in one task at a time."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        options: KafkaOptions,
        log_range: LogRange,
        isolation: Isolation | None = None,
    ) -> None:
        self._options = options
        self._log_range = log_range
        self._isolation = isolation or Isolation(options.max_unpacked)
        self._client = AIOKafkaClient(**options.connection(bootstrap))
        bounds = Bounds(int(options.fetch_wait * 1000), options.max_fetch, options.max_partition_fetch)
        self._fetcher = Fetcher(self._client, bounds, self._isolation)

    async def start(self) -> None:
        """Connect. Raises ClusterUnavailable when no broker answers within the bound."""
        try:
            async with asyncio.timeout(self._options.metadata_timeout):
                await self._client.bootstrap()
        except BaseException as error:
            await close_within("a reader that did not connect", self._fetcher.close)
            if isinstance(error, (KafkaError, TimeoutError)):
                raise ClusterUnavailable(f"the reader could not connect: {error!r}") from error
            raise

    async def assign(
        self,
        positions: Mapping[TP, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """Read exactly these partitions, each from its position. Replaces the previous assignment.

        `epochs` are the leader epochs of the records before the positions. If `topic_ids` has the ids of all
        topics, brokers compare the epochs, so the reader notices if a log has lost records that it read.

        Raises TopicMismatch if the cluster lacks a partition, and ClusterUnavailable if no broker answers.
        """
        await self._fetcher.end()
        if positions:
            self._client.set_topics({tp.topic for tp in positions})
            await require_partitions(self._client, positions, self._options.metadata_timeout)
            ids = {topic: id_bytes(each) for topic, each in topic_ids.items()}
            self._fetcher.begin(positions, ids, epochs)

    async def ranges_since(self, tps: Iterable[TP], since_ms: int) -> dict[TP, tuple[int, int]]:
        """For each partition with a record since a time (epoch milliseconds): the first such record's offset,
        and the last stable offset. Raises TopicMismatch or ClusterUnavailable.
        """
        wanted = dict.fromkeys(tps, since_ms)
        first = await self._offsets(f"where {len(wanted)} partitions were then", wanted)
        ends = await self.stable_ends(first)
        return {tp: (offset, ends[tp]) for tp, offset in first.items()}

    async def stable_ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Each partition's last stable offset: the start of its first open transaction, or its end. Raises
        TopicMismatch or ClusterUnavailable.
        """
        wanted = dict.fromkeys(tps, STABLE_END)
        return await self._offsets(f"where {len(wanted)} partitions end", wanted)

    async def _offsets(self, what: str, times: Mapping[TP, int]) -> dict[TP, int]:
        bound = self._options.metadata_timeout
        await require_partitions(self._client, times, bound)
        return await ask(what, lambda: offsets_at(self._client, times), bound + 1)

    def trust(self, producers: Collection[int], below: Mapping[TP, int] = NO_OFFSETS) -> None:
        """From the next fetch on, return records of these transactional producers as `OwnRecord`, and also
        records of any transactional producer below the partition's offset in `below`.
        """
        self._isolation.trusted = frozenset(producers)
        self._isolation.below = below

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        """Wait up to `timeout` seconds for records. Returns an empty list if none arrive.

        A batch without records means that the position moved past markers, aborted records or gaps. A
        `Damaged` stands for records that cannot be read. Raises PositionLost if the log no longer has a
        position, LogCut if the log lost records that were read, TopicAuthorizationFailedError if access is
        denied, and CorruptRecordException for a damaged batch that cannot be skipped.
        """
        deadline = monotonic() + timeout
        while True:
            if (place := self._fetcher.check()) is not None:
                await self._require(place)
            batches = self._fetcher.take(max_records)
            remaining = deadline - monotonic()
            if batches or remaining <= 0:
                return batches
            await self._fetcher.wait(remaining)

    async def _require(self, place: Place) -> None:
        """Raise PositionLost unless the log has the offset after all: a new leader may learn its end late."""
        (topic, partition), offset = place.tp, place.position
        first, end = await self._log_range(place.tp)
        if not first <= offset <= end:
            raise PositionLost(
                f"{topic}[{partition}] is to be read from offset {offset}, but its log holds {first} to"
                f" {end}: records were removed before they were processed, or the topic was created again"
            )
        place.epoch = NO_EPOCH  # a leader that does not know the epoch answers the same

    def position(self, tp: TP) -> int:
        """The offset of the next fetch. It moves past markers even if no record came."""
        return self._fetcher.places[tp].position

    def epoch(self, tp: TP) -> int:
        """The leader epoch of the last record read from a partition; NO_EPOCH if unknown."""
        place = self._fetcher.places.get(tp)
        return NO_EPOCH if place is None else place.epoch

    def unknown_topics(self) -> Collection[str]:
        """Topics that a broker did not know in its last answer."""
        return self._fetcher.unknown

    def behind(self) -> int:
        """Total number of offsets from the positions to the ends of the logs in the brokers' last answers."""
        return sum(self.behind_by_partition().values())

    def silence(self) -> float:
        """Seconds since the last answer of the broker that has been silent longest. Infinite if nothing is
        assigned, a leader has never answered, or a partition has no known leader.
        """
        return self._fetcher.silence()

    def behind_by_partition(self) -> dict[TP, int]:
        """Number of offsets from the position to the end, for each partition whose end is known."""
        places = self._fetcher.places.items()
        return {tp: max(0, each.end - each.position) for tp, each in places if each.end is not None}

    def held_up(self) -> dict[TP, HeldUp]:
        """The partitions that an open transaction blocks, according to the brokers' last answers."""
        return {
            tp: HeldUp(each.position, each.end - each.position)
            for tp, each in self._fetcher.places.items()
            if each.end is not None and each.stable == each.position < each.end
        }

    async def close(self) -> None:
        """Close the connections. Gives up waiting after a few seconds, see `close_within`."""
        await close_within("a reader", self._fetcher.close)
