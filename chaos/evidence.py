"""What the checker looks at, all of it gathered from outside the application once its workers have ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from agents.commands import OrderSagaTransition
from agents.messages import LineReleased, PaymentRefunded, ReleaseLine, StockReleased
from chaos.calls import MESSAGES, NOTES_TOPIC
from chaos.consequences import Sent
from chaos.letters import SUFFIX, Letter, content_of, is_poison, letter
from chaos.objects import Referred, referred_in
from chaos.origins import Origin
from chaos.payloads import payload_settings
from chaos.rebuilt import Compared, Rebuilt, compare
from chaos.records import Commits, Run, lanes_of, read_commits, read_run
from chaos.retried import MARK, Retried, retried
from chaos.saga_records import SagaRecords
from chaos.stores import copies_in, read_copy
from demo import evidence as books
from demo.evidence import make_codec
from streams.claims.claim import PREFIX
from streams.errors import PermanentError, StoreBroken
from streams.model.envelope import CAUSATION, ID, SOURCE
from streams.ports import TP, Record
from streams.runtime.client import TopicReader
from streams.runtime.clients import require_partitions
from streams.runtime.cluster import KafkaCluster
from streams.s3 import blobs_of, claim_checks

#: A transaction whose owner is gone is ended by the brokers after its timeout of 15 s, at their next sweep,
#: which is 10 s away at most.
ENDED_WITHIN = 27.0
_LOOK_EVERY = 0.2
_KNOWN_WITHIN = 15.0

_LINES = {kind.TOPIC: make_codec(kind, kind.TOPIC) for kind in (ReleaseLine, LineReleased)}
_BY_ORDER = frozenset({PaymentRefunded.TOPIC, StockReleased.TOPIC})


@dataclass
class Evidence:
    """All of it.

    Attributes:
        unstable: partitions with a transaction open: last stable offset and high watermark.
        ends: high watermarks of every partition in the cluster.
        books: what the demo's check looks at; None while transactions are open, and all below is empty.
        messages: every message of the application, but what sagas tell of themselves.
        sagas: what they and their participants have said.
        compensations: how often each was done, by its topic and what was compensated.
        committed: the group's positions.
        rebuilt: the tables by their changelogs.
        copies: the workers' copies of them, compared.
        unreadable: copies that cannot be read, and why.
        poison: poisonous records, and what is in them.
        letters: every record of a dead letter topic.
        retried: every record of a retry topic.
        referred: objects that messages refer to.
        objects: the object store's, with their sizes.
    """

    run: Run
    commits: Commits
    unstable: dict[TP, tuple[int, int]] = field(default_factory=dict)
    ends: dict[TP, int] = field(default_factory=dict)
    books: books.Evidence | None = None
    messages: list[Sent] = field(default_factory=list)
    sagas: SagaRecords = field(default_factory=SagaRecords)
    compensations: Counter[tuple[str, str]] = field(default_factory=Counter)
    committed: dict[TP, int] = field(default_factory=dict)
    rebuilt: Rebuilt = field(default_factory=lambda: Rebuilt(1))
    copies: list[Compared] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    poison: dict[Origin, bytes] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    retried: list[Retried] = field(default_factory=list)
    referred: dict[str, Referred] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)


async def gather(var: Path, *, ended_within: float = ENDED_WITHIN) -> Evidence:
    """Look at everything of the run in this directory.

    Raises StoreBusy while a worker still has a store open, and what Kafka's clients raise.
    """
    run = read_run(var)
    found = Evidence(run, read_commits(var))
    found.unstable, found.ends = await _stability(run.bootstrap, ended_within)
    if found.unstable:
        return found
    found.books = await books.gather(run.bootstrap, run.gateway, run.app_id, within=0)
    topics = [kind.TOPIC for kind in MESSAGES]
    if any(tp.topic == NOTES_TOPIC for tp in found.ends):
        topics.append(NOTES_TOPIC)
    async for record in _records(run, topics):
        _take(record, found)
    async for record in _records(run, [OrderSagaTransition.TOPIC]):
        found.sagas.hear(record)
    await _what_failed(run, found)
    if run.s3:
        await _files(run, found)
    found.committed = await _committed(run, found.ends)
    found.rebuilt = await _rebuild(run, found.ends)
    _compare_copies(var, run, found)
    return found


def _take(record: Record, found: Evidence) -> None:
    if is_poison(record):
        found.poison[Origin(record.topic, record.partition, record.offset)] = content_of(record)
        return
    message = sent(record)
    found.messages.append(message)
    found.sagas.take(record, message)
    _refer(record, found)
    if (done := compensation(record)) is not None:
        found.compensations[done] += 1


async def _what_failed(run: Run, found: Evidence) -> None:
    beside = sorted({tp.topic for tp in found.ends if tp.topic.endswith(SUFFIX) or MARK in tp.topic})
    async for record in _records(run, beside):
        if record.topic.endswith(SUFFIX):
            found.letters.append(letter(record))
        else:
            found.retried.append(retried(record))
        _refer(record, found)


def _refer(record: Record, found: Evidence) -> None:
    if (refers := referred_in(record)) is not None:
        found.referred.setdefault(*refers)


async def _files(run: Run, found: Evidence) -> None:
    """What the object store holds, and the files in parcels; none, when one of them is not to be had."""
    assert found.books is not None
    settings = payload_settings(run.s3)
    blobs = blobs_of(settings)
    assert blobs is not None
    try:
        async for blob in blobs.scan(PREFIX):
            found.objects[blob.name] = blob.size
    finally:
        await blobs.close()
    async with claim_checks(settings) as claims:
        with suppress(PermanentError):
            found.books.packed = await books.packed(run.bootstrap, claims)


def sent(record: Record) -> Sent:
    """What a record's headers say of the message."""
    headers = dict(record.headers)
    message_id, source, cause = (headers.get(name, b"").decode() for name in (ID, SOURCE, CAUSATION))
    return Sent(
        record.topic,
        record.partition,
        record.offset,
        (record.key or b"").decode(),
        message_id,
        source,
        cause,
    )


def compensation(record: Record) -> tuple[str, str] | None:
    """The topic, and the order or its line, if the record is about one."""
    if record.topic in _BY_ORDER:
        return record.topic, (record.key or b"").decode()
    if (codec := _LINES.get(record.topic)) is not None:
        line = codec.decode(record.value or b"", None)
        return record.topic, f"{line.sku} in {line.order_id}"
    return None


async def _records(run: Run, topics: Collection[str]) -> AsyncIterator[Record]:
    async with TopicReader(run.bootstrap, topics) as reader:
        async for record in reader.to_end():
            yield record


async def _rebuild(run: Run, ends: Collection[TP]) -> Rebuilt:
    prefix, suffix = f"{run.app_id}-", "-changelog"
    topics = {tp.topic for tp in ends if tp.topic.startswith(prefix) and tp.topic.endswith(suffix)}
    tables = {topic: topic.removeprefix(prefix).removesuffix(suffix) for topic in topics}
    rebuilt = Rebuilt(lanes_of(run))
    async for record in _records(run, sorted(topics)):
        rebuilt.add(tables[record.topic], record)
    return rebuilt


def _compare_copies(var: Path, run: Run, found: Evidence) -> None:
    for path in copies_in(var, lanes_of(run)):
        try:
            copy = read_copy(path)
        except StoreBroken as error:
            found.unreadable.append(str(error))
        else:
            found.copies.append(compare(copy, found.rebuilt, found.ends))


async def _committed(run: Run, tps: Collection[TP]) -> dict[TP, int]:
    cluster = KafkaCluster(run.bootstrap)
    try:
        return await cluster.committed(run.app_id, tps)
    finally:
        await cluster.close()


async def _stability(bootstrap: str, within: float) -> tuple[dict[TP, tuple[int, int]], dict[TP, int]]:
    """Partitions that are not stable up to their end, once all are or time is up; and every one's end."""
    deadline = time.monotonic() + within
    tps = await _partitions(bootstrap)
    async with (
        _consumer(bootstrap, "read_committed", tps) as stable,
        _consumer(bootstrap, "read_uncommitted", tps) as all_,
    ):
        while True:
            ends, stable_ends = await _ends(all_, tps), await _ends(stable, tps)
            unstable = {tp: (stable_ends[tp], end) for tp, end in ends.items() if stable_ends[tp] < end}
            if not unstable or time.monotonic() > deadline:
                return unstable, ends
            await asyncio.sleep(_LOOK_EVERY)


async def _partitions(bootstrap: str) -> list[TP]:
    """Every partition of every topic, the brokers' own included."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        topics = await admin.describe_topics()
    finally:
        await admin.close()
    return [TP(topic["topic"], each["partition"]) for topic in topics for each in topic["partitions"]]


@asynccontextmanager
async def _consumer(bootstrap: str, isolation: str, tps: Sequence[TP]) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    try:
        await consumer.start()
        # Told one by one, as it finds out by itself, every unknown topic would cost it a pause.
        await require_partitions(consumer._client, tps, _KNOWN_WITHIN)
        yield consumer
    finally:
        await consumer.stop()


async def _ends(consumer: Any, tps: Sequence[TP]) -> dict[TP, int]:
    ends = await consumer.end_offsets([TopicPartition(*tp) for tp in tps])
    return {tp: ends[TopicPartition(*tp)] for tp in tps}
