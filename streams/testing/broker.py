"""State of the fake cluster: logs, transactional ids and group positions, and faults that tests inject."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import count
from math import inf
from time import time

from streams.errors import TopicMismatch
from streams.ports import TP, Commit, Headers, Note, OpenTransaction, Record
from streams.testing.log import Log, LoggedRecord, Transaction, TransactionState
from streams.units import DAY, MIB

_ids = count(1)


class Fault(Enum):
    """Faults that happen once, at the next occasion."""

    COMMIT_DONE = "the commit happens, its answer is lost"
    COMMIT_LOST = "the commit does not happen: the transaction stays open until the id is initialised"
    SEND_REFUSED = "no record is written"
    SEND_TORN = "only the first of the partitions gets its records"
    SEND_UNANSWERED = "every record is written, the answer is lost"
    OFFSETS_REFUSED = "the source positions are not added"
    START_FAILED = "the id is initialised, the answer is lost"
    FETCH_DELAYED = "a fetch with records waiting comes back empty"
    UNAVAILABLE = "a question about positions is not answered"


class ProducerState:
    """A transactional id at the broker."""

    __slots__ = ("began", "epoch", "id", "is_used_up", "transaction")

    def __init__(self) -> None:
        self.epoch = -1
        self.id = next(_ids)
        self.is_used_up = False
        self.began = 0.0
        self.transaction: Transaction | None = None


class FakeBroker:
    """The state behind `streams.testing.cluster.FakeCluster`, whose arguments it takes, and what a test does
    to it.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        max_batch: int = MIB,
        limits: Mapping[str, int] | None = None,
        max_unpacked: int = 16 * MIB,
        now: Callable[[], float] = time,
    ) -> None:
        self.max_batch = max_batch
        self.limits = dict(limits or {})
        self.max_unpacked = max_unpacked
        #: Seconds after which an open transaction is aborted and its producer fenced; by default never. Real
        #: brokers check this every few seconds, the fake at each fetch and transaction request.
        self.transaction_timeout = inf
        #: Whether readers can name topics by id; brokers before Kafka 3.1 know only names.
        self.knows_ids = True
        #: Seconds by which the clients' clock is ahead of the broker's, and the most that the broker accepts.
        self.clock_ahead, self.most_ahead = 0.0, 3600.0
        #: Why the broker refuses transactions now, such as a missing right (empty: it accepts them), and
        #: how often it has refused.
        self.refuses = ""
        self.refused = 0
        #: How often each fault has happened. Tests should assert at their end that theirs did.
        self.happened: Counter[Fault] = Counter()
        self.id = f"cluster#{next(_ids)}"
        self._now = now
        self.ids: dict[str, str] = {}
        self._logs: dict[TP, Log] = {}
        #: The log of a partition, or None if it does not exist.
        self.log_if_there = self._logs.get
        self._producers: dict[str, ProducerState] = {}
        self.groups: dict[str, dict[TP, int]] = {}
        #: Notes of committed positions. A note for another position than the group's current one is ignored.
        self._notes: dict[str, dict[TP, Commit]] = {}
        self._faults: list[tuple[Fault, int]] = []
        #: A dict, because the order of a set of futures differs from run to run.
        self._waiting: dict[asyncio.Future[None], None] = {}
        #: Counts changes after which other records may be readable.
        self.changes = 0
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    # What a test does and looks at.

    def create_topic(self, name: str, partitions: int) -> None:
        """Add a topic, or more partitions to one."""
        self.changes += 1
        self.ids.setdefault(name, f"{name}#{next(_ids)}")
        for partition in range(partitions):
            self._logs.setdefault(TP(name, partition), Log(TP(name, partition)))

    def produce(
        self,
        tp: TP,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> int:
        """Write a record outside any transaction, as other applications do; returns its offset. It may have
        come compressed: no limit holds.
        """
        offset = self.log(tp).append(None, timestamp or self.timestamp(), key, value, headers)
        self.wake()
        return offset

    def produce_batch(self, tp: TP, raw: bytes) -> int:
        """Write a batch as it is, sound or not (`streams.testing.batches`); returns its first offset."""
        offset = self.log(tp).append_batch(raw, self.max_unpacked)
        self.wake()
        return offset

    def spoil(self, tp: TP, offset: int) -> None:
        """Damage the record of an offset where it lies, as a disk may."""
        self.log(tp).spoil(offset)

    def inject(self, fault: Fault, *, skip: int = 0, times: int = 1) -> None:
        """Make a fault happen at the next occasion, after `skip` occasions that go well."""
        self._faults += [(fault, skip if i == 0 else 0) for i in range(times)]

    @property
    def pending(self) -> list[Fault]:
        """Injected faults that have not happened yet."""
        return [fault for fault, _ in self._faults]

    def has_producer(self, transactional_id: str) -> bool:
        """Whether somebody has started this id."""
        return transactional_id in self._producers

    def expire(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, as the broker does after the transaction timeout; fences."""
        producer = self._producers[transactional_id]
        producer.epoch += 1
        self.end(producer, TransactionState.ABORTED)

    def use_up_epochs(self, transactional_id: str) -> None:
        """Give an id another producer id when its current transaction ends, or at its next start, as
        brokers do when the epochs are used up.
        """
        self._producers[transactional_id].is_used_up = True

    def sweep(self) -> None:
        """Abort transactions that are open for longer than `transaction_timeout`."""
        for name, producer in self._producers.items():
            overdue = self._now() - producer.began > self.transaction_timeout
            if overdue and producer.transaction is not None:
                self.expire(name)

    def opened(self, producer: ProducerState) -> Transaction:
        """The open transaction of a producer; begins one if there is none."""
        if producer.transaction is None:
            producer.transaction, producer.began = Transaction(producer.id), self._now()
        return producer.transaction

    def first_open(self, tp: TP) -> OpenTransaction | None:
        """The open transaction that began first in a partition. Producers are numbered as they first came."""
        log = self.log(tp)
        for number, (name, producer) in enumerate(self._producers.items()):
            if producer.transaction is not None and log.first_of(producer.transaction) == log.stable:
                return OpenTransaction(log.stable, number, producer.epoch, producer.began, name)
        return None

    def truncate(self, tp: TP, before: int) -> None:
        """Remove everything before an offset, as retention does."""
        self.changes += 1
        self.log(tp).truncate(before)

    def elect(self, *topics: str) -> None:
        """Elect new leaders for these topics (default: all), without losing records."""
        self.changes += 1
        for log in self._logs.values():
            if not topics or log.tp.topic in topics:
                log.elect()

    def cut(self, tp: TP, offset: int) -> None:
        """Lose all that a log has from an offset on, as an unclean leader election does."""
        self.log(tp).cut(offset)
        self.wake()

    def commit_of(self, group: str, tp: TP) -> Commit | None:
        """A group's position with its note."""
        offset = self.groups.get(group, {}).get(tp)
        if offset is None:
            return None
        noted = self._notes.get(group, {}).get(tp)
        return noted if noted is not None and noted.offset == offset else Commit(offset)

    def compact(self, topic: str, *, delete_retention: float = DAY) -> None:
        """Compact a topic, leaving holes. Deletions are forgotten `delete_retention` seconds after they were
        compacted first; 0 forgets them at once.
        """
        for log in self.logs_of(topic):
            log.compact(now=self._now(), delete_retention=delete_retention)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Groups have no positions in it any more, and transactions add none, as in Kafka."""
        del self.ids[name]
        opened = [each.transaction for each in self._producers.values() if each.transaction is not None]
        positions = [*self.groups.values(), *(each for t in opened for each in t.offsets.values())]
        for log in list(self.logs_of(name)):
            del self._logs[log.tp]
            for each in positions:
                each.pop(log.tp, None)
        self.wake()

    def recreate_topic(self, name: str) -> None:
        """Delete a topic and make it anew, empty, with as many partitions."""
        partitions = len(self.logs_of(name))
        self.delete_topic(name)
        self.create_topic(name, partitions)

    def forget_group(self, group: str) -> None:
        """Drop the group's positions, as Kafka does when nobody was in it for long."""
        self.groups.pop(group, None)

    def visible(self, topic: str) -> list[Record]:
        """The records of a topic for a read_committed reader, partition by partition."""
        return [
            e.record
            for log in self.logs_of(topic)
            for e in log.entries()
            if e.visible and e.record is not None and e.offset < log.stable
        ]

    def entries(self, tp: TP) -> list[LoggedRecord]:
        """All that is in a log: markers, open and aborted records too."""
        return list(self.log(tp).entries())

    # What clients ask of the broker.

    def log(self, tp: TP) -> Log:
        """The log of a partition. Raises TopicMismatch when there is none."""
        log = self.log_if_there(tp)
        if log is None:
            raise TopicMismatch(f"the cluster has no {tp.topic}[{tp.partition}]: create the topic")
        return log

    def logs_of(self, topic: str) -> list[Log]:
        """The logs of a topic's partitions, in their order."""
        found: list[Log] = []
        while (log := self._logs.get(TP(topic, len(found)))) is not None:
            found.append(log)
        return found

    def producer(self, transactional_id: str) -> ProducerState:
        """The state of a transactional id."""
        return self._producers.setdefault(transactional_id, ProducerState())

    def end(self, producer: ProducerState, state: TransactionState) -> None:
        """End a producer's transaction: write its markers and, if it is committed, its positions."""
        transaction, producer.transaction = producer.transaction, None
        if producer.is_used_up:
            producer.id, producer.is_used_up = next(_ids), False
        if transaction is None:
            return
        transaction.state = state
        for tp in sorted(transaction.partitions):
            if (log := self.log_if_there(tp)) is not None:  # else its topic was deleted
                log.mark(transaction)
        if state is TransactionState.COMMITTED:
            for group, offsets in transaction.offsets.items():
                self.groups.setdefault(group, {}).update(offsets)
                notes = self._notes.setdefault(group, {})
                notes |= {
                    tp: Commit(at, *transaction.notes.get((group, tp), Note())) for tp, at in offsets.items()
                }
        self.wake()

    def take(self, fault: Fault) -> bool:
        """Whether an injected fault happens now. If so, it is removed and counted."""
        for i, (injected, skip) in enumerate(self._faults):
            if injected is fault:
                if skip:
                    self._faults[i] = (fault, skip - 1)
                    return False
                del self._faults[i]
                self.happened[fault] += 1
                return True
        return False

    def timestamp(self) -> int:
        """Now, in milliseconds."""
        return int(self._now() * 1000)

    def wake(self) -> None:
        """Wake those who wait for records."""
        self.changes += 1
        for waiter in self._waiting:  # after those who have changed it, as an answer comes after a request
            waiter.get_loop().call_soon(_wake, waiter)

    async def changed(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until records may have become readable."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting[waiter] = None
        bell = loop.call_later(timeout, _wake, waiter)
        try:
            await waiter
        finally:
            bell.cancel()
            self._waiting.pop(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
