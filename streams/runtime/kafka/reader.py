"""A read_committed reader of chosen partitions, on aiokafka's consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from streams.brokers import Bootstrap
from streams.errors import ClusterUnavailable, PositionLost
from streams.ports import NO_IDS, NO_OFFSETS, TP, Batch, HeldUp
from streams.runtime.kafka.clients import KafkaOptions, ask, close_within, require_partitions
from streams.runtime.kafka.fetch_sessions import Sessions
from streams.runtime.kafka.partition_records import Isolation
from streams.runtime.kafka.topic_ids import id_bytes

#: Between attempts to cancel what swallows a cancellation, in seconds.
_CANCEL_AGAIN = 0.2

LogRange = Callable[[TP], Awaitable[tuple[int, int]]]


class KafkaReader:
    """Reads partitions chosen by hand; it belongs to no group and commits nothing. For one task at a time."""

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
        self._consumer = AIOKafkaConsumer(
            **options.connection(bootstrap),
            group_id=None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_bytes=options.max_fetch,
            max_partition_fetch_bytes=options.max_partition_fetch,
            fetch_max_wait_ms=int(options.fetch_wait * 1000),
            check_crcs=self._isolation,
        )
        self._sessions = Sessions(self._consumer._client.send)
        self._consumer._client.send = self._sessions.send
        self._fetcher: Any = None
        #: Leaders of what is read, as they were when it was fetched last.
        self._leaders: set[int | None] = set()
        self._states: list[tuple[TP, Any]] = []
        self._positions: dict[TP, int] = {}

    async def start(self) -> None:
        """Connect. Raises ClusterUnavailable when no broker answers within the bound."""
        try:
            async with asyncio.timeout(self._options.metadata_timeout):
                await self._consumer.start()
        except BaseException as error:
            await close_within("a reader that did not connect", self._consumer.stop)
            if isinstance(error, (KafkaError, TimeoutError)):
                raise ClusterUnavailable(f"the reader could not connect: {error!r}") from error
            raise
        # Its tasks begin now: stopping one that has not begun raises CancelledError in the caller of `stop`.
        await asyncio.sleep(0)
        self._fetcher = self._consumer._fetcher
        # aiokafka has one fetch in flight to a broker. When a partition's records lie undrained for this
        # time, 0.1 s unless set, it fetches the others without it, and that fetch may be held back by the
        # broker for `fetch_wait`: a busy partition then makes no progress. All are fetched again together
        # instead, once all are drained, which also bounds what lies here undrained to one fetch.
        self._fetcher._prefetch_backoff = 3600.0
        self._actions, self._fetcher._get_actions_per_node = self._fetcher._get_actions_per_node, self._look

    def _look(self, assignment: Any) -> Any:
        """What the fetcher is to do now. It looks at each partition for that, and again whenever anything
        happens. While each leader has a fetch under way, or records of its last one are not drained, there is
        nothing to be found.
        """
        fetcher, leader = self._fetcher, self._consumer._client.cluster.leader_for_partition
        busy = fetcher._in_flight | {leader(tp) for tp in fetcher._records}
        if busy and busy >= self._leaders:
            return [], {}, fetcher._fetcher_timeout, False, []
        self._leaders = {leader(tp) for tp in assignment.tps}
        return self._actions(assignment)

    async def assign(self, positions: Mapping[TP, int], topic_ids: Mapping[str, str] = NO_IDS) -> None:
        """Read exactly these partitions, each from its position; replaces what was assigned before. With the
        ids of all topics, they are read by those.

        Raises TopicMismatch when the cluster does not have one of them.
        """
        consumer = self._consumer
        self._states, self._positions = [], {}
        await self._hang_up()
        self._sessions.begin({topic: id_bytes(each) for topic, each in topic_ids.items()})
        if not positions:
            return
        await require_partitions(consumer._client, positions, self._options.metadata_timeout)
        consumer.assign([TopicPartition(*tp) for tp in positions])
        assignment = consumer._subscription.subscription.assignment
        for tp, offset in positions.items():
            consumer.seek(TopicPartition(*tp), offset)
            self._states.append((tp, assignment.state_value(TopicPartition(*tp))))
        self._positions = dict(positions)

    async def ranges_since(self, tps: Iterable[TP], since_ms: int) -> dict[TP, tuple[int, int]]:
        """Of each partition with a record since a time, epoch milliseconds: that record's offset, and where
        what is committed ends. Raises TopicMismatch or ClusterUnavailable.
        """
        bound, wanted = self._options.metadata_timeout, list(tps)
        await require_partitions(self._consumer._client, wanted, bound)

        async def look() -> dict[TP, tuple[int, int]]:
            times = {TopicPartition(*tp): since_ms for tp in wanted}
            first = {
                tp: at.offset for tp, at in (await self._consumer.offsets_for_times(times)).items() if at
            }
            ends = await self._consumer.end_offsets(list(first))
            return {TP(*tp): (offset, ends[tp]) for tp, offset in first.items()}

        return await ask(f"where {len(wanted)} partitions were then", look, bound + 1)

    async def stable_ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where what is decided ends in each partition: before an open transaction. Raises as above."""
        bound, wanted = self._options.metadata_timeout, list(tps)
        await require_partitions(self._consumer._client, wanted, bound)

        async def look() -> dict[TP, int]:
            return {TP(*tp): end for tp, end in (await self._consumer.end_offsets(wanted)).items()}

        return await ask(f"where {len(wanted)} partitions end", look, bound + 1)

    async def _hang_up(self) -> None:
        """End the fetches of the last assignment, connections included: a broker answers in order, so the
        first fetch of the next one would wait behind one that is held back for `fetch_wait`.

        The fetcher cancels them by itself. It must not meet one that was cancelled elsewhere: it would
        take that for its own end, and fetch nothing any more.
        """
        self._require_fetching()
        pending = set(self._fetcher._pending_tasks)
        self._consumer._subscription.unsubscribe()
        if not pending:
            return
        await asyncio.wait(pending)
        for connection in list(self._consumer._client._conns.values()):
            connection.close()

    def trust(self, producers: Collection[int], below: Mapping[TP, int] = NO_OFFSETS) -> None:
        """Give records of these transactional producers as `OwnRecord`, from the next fetch on. So
        does what any has written `below` an offset.
        """
        self._isolation.trusted = frozenset(producers)
        self._isolation.below = below

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        """Wait up to `timeout` seconds for records; empty when none came.

        A batch without records says that a position moved over markers, aborted records or holes. What
        cannot be read is a `Damaged` among the records. Raises PositionLost when a position is no longer in
        the log, ClusterUnavailable when fetching has ended.
        """
        deadline = monotonic() + timeout
        while True:
            batches = await self._take(max_records)
            if batches:
                return batches
            remaining = deadline - monotonic()
            if remaining <= 0:
                return []
            await self._wait(remaining)

    async def _take(self, max_records: int) -> list[Batch]:
        if not self._states:
            return []
        try:
            fetched = await self._consumer.getmany(timeout_ms=0, max_records=max_records)
        except OffsetOutOfRangeError as error:
            raise await self._lost(error) from error
        batches = []
        positions = self._positions
        for tp, state in self._states:
            # aiokafka moves the position with the records, and over what a reader does not get to see.
            next_offset = state.position
            if next_offset != positions[tp]:
                positions[tp] = next_offset
                batches.append(Batch(tp, fetched.get(tp, ()), next_offset))
        return batches

    async def _wait(self, timeout: float) -> None:
        """Until something was fetched. `getmany` with a timeout would not return for a lone marker, and
        nearly every changelog ends in one: each recovery would wait for its whole timeout.
        """
        self._require_fetching()
        waiter = self._fetcher._create_fetch_waiter()
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            waiter.cancel()

    def _require_fetching(self) -> None:
        """The fetcher runs for ever. Raises what it died of, or ClusterUnavailable when it does not say."""
        if (fetching := self._fetcher._fetch_task).done():
            fetching.result()
            raise ClusterUnavailable("the reader has stopped fetching, and tells no reason: open another one")

    async def _lost(self, error: OffsetOutOfRangeError) -> PositionLost:
        ((topic, partition), offset), *_ = error.args[0].items()
        first, end = await self._log_range(TP(topic, partition))
        return PositionLost(
            f"{topic}[{partition}] is to be read from offset {offset}, but its log holds {first} to {end}: "
            "records were removed before they were processed, or the topic was created again"
        )

    def position(self, tp: TP) -> int:
        """The offset that the next fetch continues from, moved over markers even when no record came."""
        return self._positions[tp]

    def unknown_topics(self) -> Collection[str]:
        """Topics that were unknown to a broker in its last answer."""
        return self._sessions.unknown

    def behind(self) -> int:
        """Offsets between the positions and the ends of the logs, as the last answers of brokers had them."""
        return sum(self.behind_by_partition().values())

    def silence(self) -> float:
        """For how many seconds a broker that leads something of what is read has not answered a fetch: the
        longest; infinite where one never has, or a partition has no known leader.
        """
        leader = self._consumer._client.cluster.leader_for_partition
        return self._sessions.silence(monotonic(), {leader(tp) for tp in self._positions})

    def behind_by_partition(self) -> dict[TP, int]:
        """The same for each partition whose end is known."""
        positions = self._positions
        ends = ((tp, state.highwater) for tp, state in self._states)
        return {tp: max(0, end - positions[tp]) for tp, end in ends if end is not None}

    def held_up(self) -> dict[TP, HeldUp]:
        """The partitions that stand at an open transaction, as the last answers of brokers had them."""
        positions = self._positions
        return {
            tp: HeldUp(state.lso, state.highwater - state.lso)
            for tp, state in self._states
            if state.lso is not None and positions[tp] == state.lso < state.highwater
        }

    async def close(self) -> None:
        """Let go of the connections, within a bound."""
        await close_within("a reader", self._close)

    async def _close(self) -> None:
        if self._fetcher is not None:
            await self._end_fetching()
        await self._consumer.stop()

    async def _end_fetching(self) -> None:
        """Not in aiokafka's way, which awaits what it has cancelled: a fetch that waits after an error would
        end the caller that closes this reader with a CancelledError (aiokafka #647).
        """
        fetching, self._consumer._fetcher = self._fetcher._fetch_task, None
        while not fetching.done():
            fetching.cancel()  # it may swallow one (aiokafka #983)
            await asyncio.wait([fetching], timeout=_CANCEL_AGAIN)
        pending = self._fetcher._pending_tasks
        for task in pending:
            task.cancel()
        # `fetch` has raised their error already, or no caller needs it.
        await asyncio.gather(fetching, *pending, return_exceptions=True)
