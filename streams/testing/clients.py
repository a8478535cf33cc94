"""The fake broker's clients: they fail, fence and count offsets as the real ones do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from streams.errors import (
    ClockWrong,
    Fenced,
    LogCut,
    Lost,
    OutcomeUnknown,
    PositionLost,
    RecordRefused,
    Refused,
    TooLarge,
    TransactionFailed,
)
from streams.model.envelope import record_size
from streams.ports import (
    NO_EPOCH,
    NO_IDS,
    NO_NOTES,
    NO_OFFSETS,
    TP,
    Batch,
    HeldUp,
    Note,
    Outgoing,
    Record,
    Sendable,
)
from streams.testing.broker import FakeBroker, Fault, ProducerState
from streams.testing.log import Log, Transaction, TransactionState


class FakeTransactions:
    """A transactional producer. As with the real one, `begin` and a commit of nothing make no request, so
    that a zombie learns of its fencing at the first request after them.
    """

    def __init__(self, broker: FakeBroker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch: int | None = None
        self._in_transaction = False
        self._requested = False
        self._failure: Fenced | TransactionFailed | None = None
        #: Seconds by which the clock of this producer's machine is ahead of the others'.
        self.clock_ahead = 0.0

    @property
    def producer_id(self) -> int:
        """The producer id that the broker has assigned."""
        return self._broker.producer(self._id).id

    @property
    def is_current(self) -> bool:
        """Whether it was started and has not been fenced."""
        return self._epoch is not None and self._broker.producer(self._id).epoch == self._epoch

    async def start(self) -> None:
        """Initialise the id: fences its previous owner and ends the transaction that one left open."""
        await asyncio.sleep(0)
        producer = self._broker.producer(self._id)
        producer.epoch += 1
        self._broker.end(producer, TransactionState.ABORTED)
        self._epoch = producer.epoch
        if self._broker.take(Fault.START_FAILED):
            raise self._fail(f"{self._id} failed to initialise: injected")
        await asyncio.sleep(0)

    async def begin(self) -> None:
        """Begin a transaction; no request is made."""
        self._check_usable()
        if self._in_transaction:
            raise self._fail(f"{self._id} failed to begin: it is in a transaction")
        self._in_transaction, self._requested = True, False

    async def send(self, batches: Mapping[TP, Sequence[Sendable]]) -> dict[TP, int]:
        """Write every record. Returns for each partition the offset after its last record."""
        self._check_usable()
        wanted = {tp: [Outgoing(*each) for each in records] for tp, records in batches.items() if records}
        sizes = {tp: max(record_size(*record) for record in records) for tp, records in wanted.items()}
        for tp, size in sizes.items():
            self._check_size(tp, size)
        for tp in wanted:
            self._broker.log(tp)
        transaction = await self._request("send")
        self._refuse_all()
        for tp, size in sizes.items():
            self._refuse_too_large(tp, size)
        transaction.partitions |= wanted.keys()
        refused, torn = self._broker.take(Fault.SEND_REFUSED), self._broker.take(Fault.SEND_TORN)
        ends: dict[TP, int] = {}
        timestamp = self._broker.timestamp()
        for tp, records in wanted.items():
            if refused or (torn and ends):
                break
            log = self._broker.log(tp)
            for key, value, headers in records:
                ends[tp] = log.append(transaction, timestamp, key, value, headers) + 1
        if refused or torn or self._broker.take(Fault.SEND_UNANSWERED):
            raise self._fail(f"{self._id} failed to send: injected")
        await asyncio.sleep(0)
        return ends

    async def send_offsets(
        self, offsets: Mapping[TP, int], group: str, notes: Mapping[TP, Note] = NO_NOTES
    ) -> None:
        """Add the group's positions to the transaction."""
        transaction = await self._request("send offsets")
        if gone := [tp for tp in offsets if self._broker.log_if_there(tp) is None]:
            raise self._fail(f"{self._id} failed to send offsets: there is no {gone[0].topic}")
        if self._broker.take(Fault.OFFSETS_REFUSED):
            raise self._fail(f"{self._id} failed to send offsets: injected")
        transaction.offsets.setdefault(group, {}).update(offsets)
        transaction.notes |= {(group, tp): notes.get(tp, Note()) for tp in offsets}
        await asyncio.sleep(0)

    async def commit(self) -> None:
        """Commit. One in which nothing was sent makes no request."""
        self._check_usable()
        if not self._in_transaction:
            raise self._fail(f"{self._id} failed to commit: it is not in a transaction")
        if not self._requested:
            self._in_transaction = False
            return
        await self._request("commit")
        producer = self._broker.producer(self._id)
        lost, unanswered = self._broker.take(Fault.COMMIT_LOST), self._broker.take(Fault.COMMIT_DONE)
        if not lost:
            self._broker.end(producer, TransactionState.COMMITTED)
        if lost or unanswered:
            raise self._fail(f"{self._id} failed to commit: injected")
        self._in_transaction = False
        await asyncio.sleep(0)

    async def discard(self) -> None:
        """Let go without ending the transaction: neither abort nor commit."""
        if self._failure is None:
            self._failure = OutcomeUnknown(f"the producer {self._id} was discarded: start another one")

    def _check_size(self, tp: TP, size: int) -> None:
        if size > (limit := self._broker.max_batch):
            raise TooLarge(f"a record for {tp.topic} makes a batch of {size} bytes; {limit} is the most")

    def _refuse_all(self) -> None:
        """Refuse as the broker does where clocks differ, or a right is taken away."""
        if abs(ahead := self._broker.clock_ahead + self.clock_ahead) > self._broker.most_ahead:
            way = "ahead of" if ahead > 0 else "behind"
            self._failure = ClockWrong(
                f"this machine's clock is {abs(ahead):,.0f} s {way} the broker's", ahead=ahead
            )
        elif self._broker.refuses:
            self._failure = Refused(self._broker.refuses)
        if self._failure is not None:
            self._broker.refused += 1
            raise self._failure

    def _refuse_too_large(self, tp: TP, size: int) -> None:
        """Refuse a batch that its topic does not take: nothing of this send is written."""
        limit = self._broker.limits.get(tp.topic)
        if limit is not None and size > limit:
            self._failure = RecordRefused(
                f"the broker refuses a batch of {size} bytes for {tp.topic}[{tp.partition}], whose"
                f" max.message.bytes is {limit} (MessageSizeTooLarge)",
                limit=limit,
                topic=tp.topic,
            )
            self._broker.refused += 1
            raise self._failure

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure
        if self._epoch is None:
            raise RuntimeError(f"the producer {self._id} was not started")

    async def _request(self, name: str) -> Transaction:
        """Check a request of a transaction as the broker does first."""
        self._check_usable()
        await asyncio.sleep(0)
        self._broker.sweep()
        producer: ProducerState = self._broker.producer(self._id)
        if producer.epoch != self._epoch:
            self._failure = Fenced(f"{self._id} was fenced when it tried to {name}: another owner started")
            raise self._failure
        if not self._in_transaction:
            raise self._fail(f"{self._id} failed to {name}: it is not in a transaction")
        self._requested = True
        return self._broker.opened(producer)

    def _fail(self, text: str) -> OutcomeUnknown:
        self._failure = OutcomeUnknown(text)
        return self._failure


class FakeReader:
    """A read_committed reader of chosen partitions."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._positions: dict[TP, int] = {}
        self._ids: Mapping[str, str] = NO_IDS
        self._epochs: dict[TP, int] = {}
        self._trusted: frozenset[int] = frozenset()
        self._below: Mapping[TP, int] = NO_OFFSETS
        self._closed = False
        #: The broker's `changes` when there was last nothing to read.
        self._seen = -1

    async def assign(
        self,
        positions: Mapping[TP, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """Read exactly these partitions, each from its position; replaces what was assigned before. Topics
        with an id are read by that.
        """
        for tp in positions:
            self._broker.log(tp)
        self._seen = -1
        self._positions = dict(positions)
        self._ids = topic_ids if self._broker.knows_ids else NO_IDS
        self._epochs = dict(epochs)

    def _log(self, tp: TP) -> Log | None:
        """The log of a partition; None if its topic is gone or was recreated."""
        log = self._broker.log_if_there(tp)
        if log is None or (meant := self._ids.get(tp.topic)) is None:
            return log
        return log if meant == self._broker.ids[tp.topic] else None

    def unknown_topics(self) -> Collection[str]:
        """Assigned topics that were deleted or recreated."""
        return {tp.topic for tp in self._positions if self._log(tp) is None}

    def trust(self, producers: Collection[int], below: Mapping[TP, int] = NO_OFFSETS) -> None:
        """Give records of these transactional producers as `OwnRecord`, from the next fetch on. So
        does what any has written `below` an offset.
        """
        self._trusted = frozenset(producers)
        self._below = below

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        """Wait up to `timeout` seconds of the loop's time for records; empty when none came."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await asyncio.sleep(0)
        while True:
            if self._closed:
                raise RuntimeError("the reader was closed")
            self._broker.sweep()
            is_delayed = Fault.FETCH_DELAYED in self._broker.pending and self._something_to_read()
            if is_delayed and self._broker.take(Fault.FETCH_DELAYED):
                return []
            batches = self._take(max_records)
            if batches:
                return batches
            remaining = deadline - loop.time()
            if remaining <= 0:
                return []
            await self._broker.changed(remaining)

    def _something_to_read(self) -> bool:
        found = ((self._log(tp), position) for tp, position in self._positions.items())
        return any(log is not None and log.stable > position for log, position in found)

    def _take(self, max_records: int) -> list[Batch]:
        batches: list[Batch] = []
        if self._seen == self._broker.changes:
            return batches
        for tp, position in list(self._positions.items()):
            records: Sequence[Record]
            log = self._log(tp)
            if log is None:
                continue
            self._require_same(log, position)  # first, as brokers do
            if not log.start <= position <= log.end:
                raise PositionLost(
                    f"{tp.topic}[{tp.partition}] is to be read from offset {position}, "
                    f"but its log holds {log.start} to {log.end}"
                )
            if position >= log.stable:
                continue
            records, next_offset = log.read(position, max_records, self._trusted, self._below.get(tp, 0))
            if next_offset == position:
                continue
            # To the back of the queue, so that one full partition does not starve the others.
            del self._positions[tp]
            self._positions[tp] = next_offset
            self._epochs[tp] = log.epoch_of(next_offset - 1)
            batches.append(Batch(tp, records, next_offset))
            max_records -= len(records)
            if max_records <= 0:
                break
        if not batches:
            self._seen = self._broker.changes
        return batches

    def _require_same(self, log: Log, position: int) -> None:
        """Raises LogCut if the log was cut below the position, as brokers do for topics read by id."""
        epoch = self._epochs.get(log.tp, NO_EPOCH)
        if epoch == NO_EPOCH or log.tp.topic not in self._ids:
            return
        end = log.end_of_epoch(epoch)
        if end is not None and end < position:
            raise LogCut([Lost(*log.tp, position, end)])

    def epoch(self, tp: TP) -> int:
        """The leader epoch of the record that was read last."""
        return self._epochs.get(tp, NO_EPOCH)

    def position(self, tp: TP) -> int:
        """The offset that the next fetch continues from."""
        return self._positions[tp]

    def behind(self) -> int:
        """Offsets between the positions and the ends of the logs."""
        return sum(self.behind_by_partition().values())

    def silence(self) -> float:
        """Always 0, because the fake broker answers at once."""
        return 0.0

    def behind_by_partition(self) -> dict[TP, int]:
        """Offsets between the position and the end of the log, for each partition."""
        logs = {tp: self._log(tp) for tp in self._positions}
        return {tp: 0 if log is None else log.end - self._positions[tp] for tp, log in logs.items()}

    def held_up(self) -> dict[TP, HeldUp]:
        """The partitions that are blocked by an open transaction."""
        logs = {tp: self._log(tp) for tp in self._positions}
        return {
            tp: HeldUp(log.stable, log.end - log.stable)
            for tp, log in logs.items()
            if log is not None and self._positions[tp] == log.stable < log.end
        }

    async def close(self) -> None:
        """Close the reader. A later `fetch` raises RuntimeError."""
        self._closed = True
