"""Replays dead letters of other programs to the topics that they came from, each of them once.

A replayed record and its entry in the log of replays are written in one transaction, and the log is read
before anything is replayed. So the next replay continues where a killed one stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from streams.brokers import Brokers
from streams.engine.waiting.dead_letters.foreign import ForeignLetter, headers_to_replay, matches, read_letter
from streams.errors import TopicMismatch
from streams.host.client import TopicReader
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.model.envelope import ID, record_size, rfc3339
from streams.model.layout import partition_of
from streams.ports import TP, Damaged, Outgoing, Record, TopicSpec, Transactions
from streams.units import MIB

#: Maximum dead letters, and approximate maximum bytes, of one transaction.
_LETTERS, _BYTES = 500, 4 * MIB
#: A header of replayed records: the topic, partition and offset of the dead letter.
REDRIVEN = "redriven-from"


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the log of replays: which dead letter went where, and who replayed it, why and when."""

    letters: str
    partition: int
    offset: int
    timestamp: int
    topic: str
    to_partition: int
    who: str
    why: str
    at: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Replayed).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """Which dead letters to replay, and how.

    Attributes:
        letters: the topic of dead letters.
        log: the topic with the log of replays; created if it is missing.
        where: filters, which all have to match (`foreign.FILTERS`).
        to: a topic for all dead letters; empty: each goes to the topic that it came from.
        most: maximum number of dead letters to replay; 0: no limit.
        rate: maximum number of dead letters per second; 0: no limit.
        drop: names of headers to leave out of replayed records; a final `*` matches any ending.
        who, why: who replays, and the reason, for the log.
    """

    letters: str
    log: str
    where: Mapping[str, str] = field(default_factory=dict)
    to: str = ""
    most: int = 0
    rate: float = 0.0
    drop: Sequence[str] = ()
    who: str = ""
    why: str = ""


@dataclass(slots=True)
class RedriveProgress:
    """Numbers of dead letters: `looked` were read, `matched` match the filters, `before` were replayed by
    earlier runs, `replayed` by this one, and `homeless` match but do not name their source topic. `dropped`
    counts the headers left out of replayed records, by name, and `with_id` the replayed records with a
    `ce_id`.
    """

    looked: int = 0
    matched: int = 0
    before: int = 0
    replayed: int = 0
    homeless: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    with_id: int = 0


class Redrive:
    """Reads one topic of dead letters, and replays them. Raises TopicMismatch for a topic that the cluster
    does not have, and ClusterUnavailable.
    """

    def __init__(self, brokers: Brokers, plan: RedrivePlan, *, max_record: int = 0) -> None:
        """`max_record` is the maximum size of a record in bytes; 0 means the clients' default."""
        self._brokers = brokers
        self._plan = plan
        self._options = KafkaOptions(max_batch=max_record) if max_record else KafkaOptions()
        self._partitions: dict[str, int] = {}
        self.progress = RedriveProgress()

    async def log(self) -> list[Replayed]:
        """The log of replays of this topic, in order. Records that are not entries are skipped."""
        found: list[Replayed] = []
        if self._plan.log not in await self._describe(self._plan.log):
            return found
        async with TopicReader(self._brokers, [self._plan.log]) as reader:
            async for record in reader.to_end():
                try:
                    entry = _decode(record.value or b"")
                except msgspec.DecodeError:
                    continue
                if entry.letters == self._plan.letters:
                    found.append(entry)
        return found

    async def letters(self) -> AsyncGenerator[tuple[ForeignLetter, Record, bool], None]:
        """Yield the dead letters that match, with their records, and whether each was replayed before."""
        done = {(entry.partition, entry.offset): entry.timestamp for entry in await self.log()}
        await self._require(self._plan.letters)
        async with TopicReader(self._brokers, [self._plan.letters]) as reader:
            async for record in reader.to_end():
                self.progress.looked += 1
                if isinstance(record, Damaged) or not matches(
                    letter := read_letter(record), self._plan.where
                ):
                    continue
                # A topic that was created again has the same offsets, but other timestamps.
                yield letter, record, done.get((record.partition, record.offset)) == record.timestamp

    def headers_of(self, record: Record) -> list[tuple[str, bytes]]:
        """The headers for a replay of this dead letter. Also counts them in `progress`."""
        kept, dropped = headers_to_replay(record.headers, self._plan.drop, time.time())
        self.progress.dropped.update(dropped)
        self.progress.with_id += any(name == ID for name, _ in kept)
        return kept

    async def replay(self, report: Callable[[RedriveProgress], None] = lambda _: None) -> RedriveProgress:
        """Replay all that match and were not replayed before. Calls `report` after each transaction. Raises
        TransactionFailed if the command must be run again to finish, or Fenced if another replay has started.
        """
        await self._make_log()
        cluster = KafkaCluster(self._brokers, self._options)
        transactions = cluster.transactions(f"steadfaust-redrive-{self._plan.letters}")
        try:
            # Start first: it ends the transaction of a killed replay, so that the log is complete.
            await transactions.start()
            await self._replay(transactions, report)
        finally:
            await transactions.discard()
            await cluster.close()
        return self.progress

    async def _replay(self, transactions: Transactions, report: Callable[[RedriveProgress], None]) -> None:
        batch: dict[TP, list[Outgoing]] = {}
        count, size, begun = 0, 0, time.monotonic()
        plan, progress = self._plan, self.progress
        at_once = min(_LETTERS, max(1, int(plan.rate))) if plan.rate else _LETTERS
        async with aclosing(self._wanted()) as wanted:
            async for letter, record in wanted:
                to = await self._target(letter, record)
                place = f"{plan.letters}/{record.partition}/{record.offset}"
                headers = [*self.headers_of(record), (REDRIVEN, place.encode())]
                batch.setdefault(to, []).append(Outgoing(record.key, record.value, headers))
                entry = Outgoing(place.encode(), _encode(self._entry(record, to)), [])
                batch.setdefault(TP(plan.log, 0), []).append(entry)
                count, size = count + 1, size + record_size(record.key, record.value, headers)
                if count == at_once or size >= _BYTES:
                    await self._commit(transactions, batch, count)
                    report(progress)
                    batch, count, size = {}, 0, 0
                    if plan.rate:
                        await asyncio.sleep(begun + progress.replayed / plan.rate - time.monotonic())
        if count:
            await self._commit(transactions, batch, count)
            report(progress)

    async def _commit(
        self, transactions: Transactions, batch: Mapping[TP, list[Outgoing]], count: int
    ) -> None:
        await transactions.begin()
        await transactions.send(batch)
        await transactions.commit()
        self.progress.replayed += count

    async def _wanted(self) -> AsyncGenerator[tuple[ForeignLetter, Record], None]:
        """The dead letters to replay in this run."""
        plan, progress, left = self._plan, self.progress, self._plan.most
        async with aclosing(self.letters()) as letters:
            async for letter, record, replayed in letters:
                progress.matched += 1
                if replayed:
                    progress.before += 1
                elif not (plan.to or letter.topic):
                    progress.homeless += 1
                else:
                    yield letter, record
                    left -= 1
                    if plan.most and not left:
                        return

    async def _target(self, letter: ForeignLetter, record: Record) -> TP:
        """The partition to replay to: the one that the dead letter came from, if the topic has it; else that
        of its key.
        """
        topic = self._plan.to or letter.topic
        if topic == self._plan.letters:
            raise TopicMismatch(f"{topic} is itself the topic of dead letters: name another one with --to")
        if topic not in self._partitions:
            self._partitions[topic] = await self._require(topic)
        number = self._partitions[topic]
        if not self._plan.to and 0 <= letter.topic_partition < number:
            return TP(topic, letter.topic_partition)
        if record.key is None:
            return TP(topic, record.offset % number)
        return TP(topic, partition_of(record.key, number))

    def _entry(self, record: Record, to: TP) -> Replayed:
        return Replayed(
            letters=self._plan.letters,
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp,
            topic=to.topic,
            to_partition=to.partition,
            who=self._plan.who,
            why=self._plan.why,
            at=rfc3339(time.time()),
        )

    # -- topics -------------------------------------------------------------------------------------------

    async def _describe(self, topic: str) -> Mapping[str, int]:
        async with KafkaTopics(self._brokers) as topics:
            return {name: each.partitions for name, each in (await topics.describe([topic])).items()}

    async def _require(self, topic: str) -> int:
        """The number of partitions of a topic. Raises TopicMismatch if the cluster does not have it."""
        found = await self._describe(topic)
        if topic not in found:
            raise TopicMismatch(f"the cluster has no topic {topic}: check the name, or name one with --to")
        return found[topic]

    async def _make_log(self) -> None:
        async with KafkaTopics(self._brokers) as topics:
            if self._plan.log in await topics.describe([self._plan.log]):
                return
            copies = min(3, await topics.brokers())
            config = {"cleanup.policy": "compact", "min.insync.replicas": str(max(1, copies - 1))}
            await topics.create([TopicSpec(self._plan.log, 1, copies, config)])
