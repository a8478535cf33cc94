"""Take fetched batches into a lane, within the bounds of its backlog."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from streams.engine.staging.commit_order import CommitOrder
from streams.engine.staging.keys import prefix_of
from streams.engine.staging.loops import was_looped
from streams.engine.waiting.operations.admission import OperationAdmission, is_about_a_handler
from streams.engine.way.admission import MessageAdmission
from streams.engine.way.dispatch import Dispatch
from streams.engine.way.sources import Sources
from streams.model.application import LaneOptions
from streams.ports import TP, Batch

#: Records taken from the reader at once: large enough to be fast, small enough to let other lanes run.
FETCH_RECORDS = 500
FETCH_TIMEOUT = 0.5
#: How long a lane takes records before other lanes have their turn, in seconds, about.
TURN = 0.1
#: Records taken at once: before their duration is known, and at most. Beyond that, decoded messages no longer
#: fit in the processor's cache when their handlers run.
FIRST_OFFER, LARGEST_OFFER = 16, 96


class Intake:
    """Feeds a lane from the reader, each partition in order, within the lane's bounds."""

    def __init__(
        self,
        sources: Sources,
        limit: BacklogLimit,
        admission: MessageAdmission,
        operations: OperationAdmission,
        dispatch: Dispatch,
    ) -> None:
        """`limit` is shared by all lanes of the worker."""
        app = admission.staging.app
        self._sources = sources
        self._limit = limit
        self._admission = admission
        self._operations = operations
        self._dispatch = dispatch
        self._order = admission.staging.order
        self._long_queues = admission.waiting.long_queues
        self._loops = admission.loops
        self._clock = dispatch.clock
        #: Of each source the gate of its handler, and its partitions with the numbers that they belong to.
        self._of_sources = [
            (
                admission.waiting.gates[source.handler.name],
                [
                    (tp, TP(topic, home), prefix_of(home))
                    for tp in sources.partitions
                    if tp.topic == topic
                    for home in [app.layout.home_of(tp.partition)]
                ],
            )
            for topic, source in app.wiring.sources().items()
        ]
        self._operations_topic = app.layout.operations
        self._repartitions = app.repartitions
        self._group = app.layout.app_id.encode()
        self._batches: dict[TP, deque[Batch]] = {}
        #: Records that are taken at once: fewer if each takes long.
        self._at_once = FIRST_OFFER
        #: Messages taken since the lane opened, by topic; counted by the batch.
        self.taken_by_topic: Counter[str] = Counter()

    async def step(self, taken: Callable[[], None]) -> bool:
        """Take fetched batches, then fetch more. False: the lane is full and has to commit first. `taken` is
        called when a commit may have work.
        """
        held_back = self._held_back()
        if held_back != self._sources.held_back:
            await self._sources.hold_back(held_back)
        if not self._offer(taken):
            return True
        room = self._room()
        if not room:
            return False
        fetched = min(FETCH_RECORDS, room)
        batches = await self._sources.reader.fetch(max_records=fetched, timeout=FETCH_TIMEOUT)
        for batch in batches:
            self._batches.setdefault(batch.tp, deque()).append(batch)
        self._offer(taken)
        return True

    def _held_back(self) -> frozenset[TP]:
        """The partitions that must not be read now: those of keys with a long queue, and those of sources
        whose handler is paused. Other topics are read, because other handlers may take them.
        """
        numbers = self._long_queues.held_back(self._clock.now())
        held_back = numbers.intersection(self._sources.partitions)
        for gate, places in self._of_sources:
            if gate.pauses or numbers:
                held_back |= {tp for tp, home, prefix in places if prefix in gate.pauses or home in numbers}
        return held_back

    @property
    def lag(self) -> int:
        """Messages between the committed positions and the ends of the topics, by the last known ends."""
        return self.not_taken.total() + self._order.uncommitted

    @property
    def not_taken(self) -> Counter[str]:
        """By topic, messages that the lane has not taken yet, by the last known ends of the topics."""
        left: Counter[str] = Counter()
        for tp, offsets in self._sources.behind().items():
            left[self._source_of(tp)] += offsets
        for tp, batches in self._batches.items():
            left[self._source_of(tp)] += sum(len(batch.records) for batch in batches)
        return left

    def _source_of(self, tp: TP) -> str:
        """The source of a repartition topic; any other topic itself."""
        return self._repartitions.get(tp.topic, tp.topic)

    @property
    def oldest(self) -> int | None:
        """The timestamp of the oldest message that was read and is not committed, in epoch milliseconds."""
        heads = [batches[0].records for batches in self._batches.values()]
        times = [self._order.oldest, *(records[0].timestamp for records in heads if records)]
        return min((time for time in times if time > 0), default=None)

    def _room(self) -> int:
        if not self._dispatch.room:
            return 0
        held = (batches for tp, batches in self._batches.items() if tp not in self._sources.held_back)
        return self._limit.room(self._order, sum(len(batch.records) for batches in held for batch in batches))

    def _offer(self, taken: Callable[[], None]) -> bool:
        """Take the fetched batches as far as there is room. False: this lane's turn is over."""
        until = perf_counter() + TURN
        for tp in [tp for tp in self._batches if tp not in self._sources.held_back]:
            batches = self._batches.pop(tp)
            while batches and perf_counter() < until and self._accept_first(batches):
                pass
            if batches:
                self._batches[tp] = batches  # behind the others
        if self._order.backlog or self._order.has_advanced:
            taken()
        return perf_counter() < until

    def _accept_first(self, batches: deque[Batch]) -> bool:
        """Take the first of these batches, or only its first `_at_once` records. False: the lane did not take
        all of those.
        """
        batch = batches.popleft()
        if len(batch.records) > self._at_once:
            part = batch.records[: self._at_once]
            batches.appendleft(Batch(batch.tp, batch.records[self._at_once :], batch.next_offset))
            batch = Batch(batch.tp, part, part[-1].offset + 1)
        offered = len(batch.records)
        batch = self._skip_looped(self._order.skip_committed(batch))
        began = perf_counter()
        taken = self._accept(batch)
        seconds = perf_counter() - began
        if seconds > TURN:
            self._at_once = max(1, self._at_once // 4)
        elif seconds < TURN / 4:
            self._at_once = max(FIRST_OFFER, min(LARGEST_OFFER, self._at_once * 2, offered * 2))
        if taken == len(batch.records):
            if self._loops is not None:
                self._loops.read_up_to(batch.tp, batch.next_offset)
            return True
        batches.appendleft(Batch(batch.tp, batch.records[taken:], batch.next_offset))
        return False

    def _skip_looped(self, batch: Batch) -> Batch:
        """The batch without records that were handled in the transaction that wrote them. Every topic is
        checked, because it may have been looped before a deploy.
        """
        records = [record for record in batch.records if not was_looped(record, self._group)]
        if len(records) == len(batch.records):
            return batch
        self._order.has_looped = True
        self.taken_by_topic[batch.tp.topic] += len(batch.records) - len(records)
        return Batch(batch.tp, records, batch.next_offset)

    def _accept(self, batch: Batch) -> int:
        """Take records in order, as far as there is room. Returns how many. Raises HandlerFailed."""
        if not batch.records:
            self._order.advance_position(batch.tp, batch.next_offset)
            return 0
        now = self._clock.now()
        if batch.tp.topic == self._operations_topic:
            return self._accept_operations(batch, now)
        arrivals, taken = self._admission.take(batch, self._dispatch.room, now)
        self.taken_by_topic[batch.tp.topic] += taken
        self._dispatch.dispatch_all(arrivals, now)
        return taken

    def _accept_operations(self, batch: Batch, now: float) -> int:
        """Take operations. Those about handlers need no room, because a resume may be what makes room."""
        for taken, record in enumerate(batch.records):
            if not self._dispatch.room and not is_about_a_handler(record):
                return taken
            operation = self._operations.take(batch, record, now)
            if operation is not None:
                self._dispatch.dispatch_operation(operation, now)
        return len(batch.records)


class BacklogLimit:
    """Bounds the backlogs of all lanes of a worker.

    A lane may fill its own bound while the worker has room. When the worker has none, each lane may still
    fill its share, so that a busy lane cannot starve the others. So together the lanes can reach twice the
    bound of the worker, until those above their share have committed.
    """

    def __init__(self, lane_options: LaneOptions) -> None:
        self._options = lane_options
        self._orders: list[CommitOrder] = []

    @contextmanager
    def counting(self, order: CommitOrder) -> Iterator[None]:
        """Count the backlog of a lane while it works."""
        self._orders.append(order)
        try:
            yield
        finally:
            self._orders = [each for each in self._orders if each is not order]

    def room(self, order: CommitOrder, read_ahead: int) -> int:
        """How many more messages a lane may fetch; 0: it has to commit first. `read_ahead` is the number of
        messages that it has fetched and not taken.
        """
        lane_options, messages, size = self._options, order.uncommitted + read_ahead, order.uncommitted_bytes
        if size >= lane_options.max_backlog_bytes:
            return 0
        lanes = max(1, len(self._orders))
        share = max(1, lane_options.max_worker_backlog // lanes) - messages
        if size >= lane_options.max_worker_backlog_bytes // lanes:
            share = 0
        left = lane_options.max_worker_backlog - read_ahead - sum(each.uncommitted for each in self._orders)
        if sum(each.uncommitted_bytes for each in self._orders) >= lane_options.max_worker_backlog_bytes:
            left = 0
        return max(0, min(lane_options.max_backlog - messages, max(share, left)))
