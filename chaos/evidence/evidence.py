"""What the checker looks at, all of it gathered from outside the application once its workers have ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from agents.commands import OrderSagaTransition
from agents.messages import DocumentsPacked, LineReleased, PaymentRefunded, ReleaseLine, StockReleased
from chaos.evidence.calls import MESSAGES, NOTES_TOPIC
from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import CAUSATION, ID, SOURCE, Origin, decoder
from chaos.evidence.in_postgres import DatabaseEvidence, look
from chaos.evidence.letters import SUFFIX, LetterEvidence, content_of, is_poison, letter
from chaos.evidence.objects import BucketReader, Referred, StoredObject, referred_in
from chaos.evidence.plain import Counting, PlainClient, TopicCount
from chaos.evidence.rebuilt import Compared, Rebuilt, compare
from chaos.evidence.retry_rows import MARK, Retried, retried
from chaos.evidence.saga_records import SagaRecords
from chaos.evidence.stores import copies_in, read_copy
from chaos.rig.records import (
    CommitTimes,
    Request,
    RunRecords,
    lanes_of,
    read_commits,
    read_requests,
    read_run,
)
from demo import evidence as books
from streams.errors import StoreBroken
from streams.host.client import TopicReader
from streams.ports import TP

if TYPE_CHECKING:
    from streams.ports import Record

#: A transaction whose owner is gone is ended by the brokers after its timeout of 15 s, at their next sweep,
#: which is 10 s away at most.
ENDED_WITHIN = 27.0
_LOOK_EVERY = 0.2

_LINES = {kind.TOPIC: decoder(kind.TOPIC) for kind in (ReleaseLine, LineReleased)}
_PACKED = decoder(DocumentsPacked.TOPIC)
_BY_ORDER = frozenset({PaymentRefunded.TOPIC, StockReleased.TOPIC})


@dataclass
class Evidence:
    """All of it.

    Attributes:
        unstable: partitions with a transaction open: last stable offset and high watermark.
        ends: high watermarks of every partition in the cluster.
        books: what the demo's check looks at; None while transactions are open, and all below is empty.
        messages: every message of the application, but what sagas tell of themselves.
        sagas: messages of sagas and their participants.
        compensations: how often each was done, by its topic and what was compensated.
        committed: the group's positions.
        rebuilt: the tables by their changelogs.
        copies: the workers' copies of them, compared.
        unreadable: copies that cannot be read, and why.
        poison: poisonous records, and what is in them.
        letters: every record of a dead letter topic.
        retried: every record of a retry topic.
        referred: objects that messages refer to.
        objects: those in the object store.
        parcels: packed files: the order, the message's value, and the object that it refers to instead.
        requests: clients' requests to the orders API.
        database: what PostgreSQL has.
        counts: records by topic, as they were read here; `counts_again`, as another client reads them.
    """

    run: RunRecords
    commits: CommitTimes
    unstable: dict[TP, tuple[int, int]] = field(default_factory=dict)
    ends: dict[TP, int] = field(default_factory=dict)
    books: books.DemoEvidence | None = None
    messages: list[SentMessage] = field(default_factory=list)
    sagas: SagaRecords = field(default_factory=SagaRecords)
    compensations: Counter[tuple[str, str]] = field(default_factory=Counter)
    committed: dict[TP, int] = field(default_factory=dict)
    rebuilt: Rebuilt = field(default_factory=lambda: Rebuilt(1))
    copies: list[Compared] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    poison: dict[Origin, bytes] = field(default_factory=dict)
    letters: list[LetterEvidence] = field(default_factory=list)
    retried: list[Retried] = field(default_factory=list)
    referred: dict[str, Referred] = field(default_factory=dict)
    objects: dict[str, StoredObject] = field(default_factory=dict)
    parcels: list[tuple[str, bytes, str]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    database: DatabaseEvidence = field(default_factory=DatabaseEvidence)
    counts: dict[str, TopicCount] = field(default_factory=dict)
    counts_again: dict[str, TopicCount] = field(default_factory=dict)


async def gather(var: Path, *, ended_within: float = ENDED_WITHIN) -> Evidence:
    """Look at everything of the run in this directory.

    Raises StoreBusy while a worker still has a store open, and what Kafka's clients raise.
    """
    run = read_run(var)
    found = Evidence(run, read_commits(var))
    plain = PlainClient(run.bootstrap)
    found.unstable, found.ends = await _stability(plain, ended_within)
    if found.unstable:
        return found
    found.books = await books.gather(run.bootstrap, run.gateway, run.app_id, within=0)
    await _messages(run, plain, found)
    found.requests = read_requests(var)
    if run.postgres:
        found.database = await look(run.postgres)
    if run.s3:
        await asyncio.to_thread(_files, run, found)
    positions = await asyncio.to_thread(plain.positions, run.app_id)
    # Of changelogs a group has the ends that it has written, which are no positions of messages.
    found.committed = {tp: at for tp, at in positions.items() if not tp.topic.endswith("-changelog")}
    found.rebuilt = await _rebuild(run, found.ends)
    _compare_copies(var, run, found)
    return found


async def _messages(run: RunRecords, plain: PlainClient, found: Evidence) -> None:
    """All that topics have; changelogs are compacted meanwhile, so two counts of them may differ."""
    topics = [kind.TOPIC for kind in MESSAGES]
    if any(tp.topic == NOTES_TOPIC for tp in found.ends):
        topics.append(NOTES_TOPIC)
    beside = sorted({tp.topic for tp in found.ends if tp.topic.endswith(SUFFIX) or MARK in tp.topic})
    counting = Counting()
    async for record in _records(run, [*topics, OrderSagaTransition.TOPIC, *beside]):
        counting.add(record.topic, record.headers)
        if record.topic == OrderSagaTransition.TOPIC:
            found.sagas.take_transition(record)
        elif record.topic in topics:
            _take(record, found)
        else:
            _take_beside(record, found)
    found.counts = counting.counts()
    those = {*topics, OrderSagaTransition.TOPIC, *beside}
    found.counts_again = await asyncio.to_thread(plain.count, those)


def _take(record: Record, found: Evidence) -> None:
    if is_poison(record):
        found.poison[Origin(record.topic, record.partition, record.offset)] = content_of(record)
        return
    message = sent(record)
    found.messages.append(message)
    found.sagas.take(record, message)
    name = _refer(record, found)
    if record.topic == DocumentsPacked.TOPIC:
        found.parcels.append((message.key, record.value or b"", name))
    if (done := compensation(record)) is not None:
        found.compensations[done] += 1


def _take_beside(record: Record, found: Evidence) -> None:
    if record.topic.endswith(SUFFIX):
        found.letters.append(letter(record))
    else:
        found.retried.append(retried(record))
    _refer(record, found)


def _refer(record: Record, found: Evidence) -> str:
    """The object that it refers to; empty: none."""
    if (refers := referred_in(record)) is None:
        return ""
    found.referred.setdefault(*refers)
    return refers[0]


def _files(run: RunRecords, found: Evidence) -> None:
    """What the object store holds, and the files in parcels; what cannot be read is missing."""
    assert found.books is not None
    bucket = BucketReader(run.s3)
    found.objects = bucket.stored()
    for order_id, value, name in found.parcels:
        with suppress(Exception):  # of bytes that are no parcel, fastavro raises whatever they lead it into
            parcel = _PACKED(bucket.read(name) if name else value)
            files = [(each["name"], sha256(each["data"]).hexdigest()) for each in parcel["attachments"]]
            found.books.packed.setdefault(order_id, []).extend(files)


def sent(record: Record) -> SentMessage:
    """What a record's headers say of the message."""
    headers = dict(record.headers)
    message_id, source, cause = (headers.get(name, b"").decode() for name in (ID, SOURCE, CAUSATION))
    return SentMessage(
        record.topic,
        record.partition,
        record.offset,
        (record.key or b"").decode(),
        message_id,
        source,
        cause,
        record.timestamp / 1000,
    )


def compensation(record: Record) -> tuple[str, str] | None:
    """The topic, and the order or its line, if the record is about one."""
    if record.topic in _BY_ORDER:
        return record.topic, (record.key or b"").decode()
    if (decode := _LINES.get(record.topic)) is not None:
        line = decode(record.value or b"")
        return record.topic, f"{line['sku']} in {line['order_id']}"
    return None


async def _records(run: RunRecords, topics: Collection[str]) -> AsyncIterator[Record]:
    async with TopicReader(run.bootstrap, topics) as reader:
        async for record in reader.to_end():
            yield record


async def _rebuild(run: RunRecords, ends: Collection[TP]) -> Rebuilt:
    prefix, suffix = f"{run.app_id}-", "-changelog"
    topics = {tp.topic for tp in ends if tp.topic.startswith(prefix) and tp.topic.endswith(suffix)}
    tables = {topic: topic.removeprefix(prefix).removesuffix(suffix) for topic in topics}
    rebuilt = Rebuilt(lanes_of(run))
    async for record in _records(run, sorted(topics)):
        rebuilt.add(tables[record.topic], record)
    return rebuilt


def _compare_copies(var: Path, run: RunRecords, found: Evidence) -> None:
    for path in copies_in(var, lanes_of(run)):
        try:
            copy = read_copy(path)
        except StoreBroken as error:
            found.unreadable.append(str(error))
        else:
            found.copies.append(compare(copy, found.rebuilt, found.ends))


async def _stability(plain: PlainClient, within: float) -> tuple[dict[TP, tuple[int, int]], dict[TP, int]]:
    """Partitions that are not stable up to their end, once all are or time is up; and every one's end."""
    deadline = time.monotonic() + within
    tps = await asyncio.to_thread(plain.partitions)
    while True:
        ends = await asyncio.to_thread(plain.ends, tps)
        stable_ends = await asyncio.to_thread(plain.ends, tps, committed=True)
        unstable = {tp: (stable_ends[tp], end) for tp, end in ends.items() if stable_ends[tp] < end}
        if not unstable or time.monotonic() > deadline:
            return unstable, ends
        await asyncio.sleep(_LOOK_EVERY)
