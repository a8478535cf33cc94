"""Erases a key: asks the lanes to do it, and searches topics for records that are left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import uuid_utils

from streams.brokers import Brokers
from streams.host.client import TopicReader
from streams.kafka.clients import KafkaOptions
from streams.kafka.operations import OperationsProducer
from streams.kafka.topics import KafkaTopics
from streams.model.claim import BadReference, claim_in
from streams.model.envelope import new_headers, rfc3339
from streams.model.layout import Layout, dead_letter_topic, retry_topic
from streams.model.operations import KEY_OPERATION, KeyCommand, KeyDone, KeyOperation, encode_operation
from streams.model.policy.retry import RETRY_TOPICS
from streams.ports import TP, Headers, Outgoing

_decode = msgspec.json.Decoder(KeyDone).decode


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a key's records in a topic, and when the newest expires; empty if it never does."""

    topic: str
    records: int
    until: str


@dataclass(slots=True)
class Answers:
    """The answers of lanes: erased things by kind, names of objects, partitions without an answer."""

    found: Counter[str] = field(default_factory=Counter)
    objects: set[str] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)


async def ask_lanes(
    brokers: Brokers, layout: Layout, kind: KeyCommand, key: str, *, who: str, why: str, timeout: float
) -> Answers:
    """Send an operation on a key to every partition, and again to those that have more to do. Each round
    waits up to `timeout` seconds for all answers, and is the last if one is missing.
    """
    answers = Answers(silent=set(range(layout.partitions)))
    async with TopicReader(brokers, [layout.operations_log]) as log:
        producer = OperationsProducer(brokers, KafkaOptions())
        try:
            asked = answers.silent
            while asked:
                own_id, now = str(uuid_utils.uuid7()), time.time()
                operation = KeyOperation(kind=kind, key=key.encode(), who=who, why=why, at_ms=int(now * 1000))
                source = f"{layout.app_id}/desk"
                headers = new_headers(KEY_OPERATION, key, source=source, time=now, message_id=own_id)
                post = Outgoing(operation.key, encode_operation(operation), headers)
                await producer.send([(TP(layout.operations, number), post) for number in sorted(asked)])
                asked = await _answered(log, own_id, answers, timeout)
        finally:
            await producer.close()
    return answers


async def _answered(log: TopicReader, own_id: str, answers: Answers, timeout: float) -> set[int]:
    """Add the answers to an operation. Returns the partitions to ask again; none if an answer is missing."""
    more: set[int] = set()
    until = time.monotonic() + timeout
    while answers.silent and time.monotonic() < until:
        for record in await log.fetch():
            try:
                done = _decode(record.value or b"")
            except msgspec.DecodeError:  # of another operation
                continue
            if done.id == own_id:
                answers.silent.discard(done.partition)
                answers.found.update(done.found)
                answers.objects.update(done.objects)
                more |= {done.partition} if done.more else set()
    again = set() if answers.silent else more
    answers.silent |= more
    return again


async def left_in_topics(
    brokers: Brokers, layout: Layout, messages: Iterable[str], key: str
) -> tuple[list[Left], set[str]]:
    """Read the whole topics of messages, their retries and dead letters. Returns a key's records in them, and
    the names of the objects that these refer to.
    """
    names = {
        name
        for topic in messages
        for app_id in ("", layout.app_id)
        for name in (
            topic,
            layout.repartition(topic),
            dead_letter_topic(topic, app_id),
            *(retry_topic(topic, tier + 1, app_id) for tier in range(RETRY_TOPICS)),
        )
    }
    async with KafkaTopics(brokers) as topics:
        described = await topics.describe(names)
    left: list[Left] = []
    objects: set[str] = set()
    for name, topic in sorted(described.items()):
        count, newest = 0, 0
        async with TopicReader(brokers, [name]) as reader:
            async for record in reader.to_end():
                if record.key == key.encode():
                    count, newest = count + 1, max(newest, record.timestamp)
                    objects.update(_object(record.headers))
        if count:
            kept = int(topic.config["retention.ms"])
            left.append(
                Left(topic=name, records=count, until="" if kept < 0 else rfc3339((newest + kept) / 1000))
            )
    return left, objects


def _object(headers: Headers) -> list[str]:
    try:
        claim = claim_in(dict(headers))
    except BadReference:
        return []
    return [] if claim is None else [claim.name]
