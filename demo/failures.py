"""Records that failures leave in topics: dead letters, retries, poison, and payloads that are elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from agents.commands import OrderSubmitted
from agents.messages import DocumentsPacked, OrderDocumented, OrderPlaced
from demo.purchases import Purchase, orchestrated
from demo.trouble import POISON_SOURCE
from streams.errors import PermanentError
from streams.host.client import TopicReader
from streams.model.claim import DATAREF
from streams.model.claim_checks import ClaimChecks
from streams.model.envelope import SOURCE
from streams.model.layout import dead_letter_topic, retry_topic

if TYPE_CHECKING:
    from streams.brokers import Bootstrap  # for its annotations alone: the checker is independent


TIERS = (1, 2, 3)
#: What carries the files of orders on their way.
WITH_FILES = (OrderPlaced.TOPIC, OrderSubmitted.TOPIC, OrderDocumented.TOPIC, DocumentsPacked.TOPIC)


class LetterSource(NamedTuple):
    """Where a message came from."""

    topic: str
    partition: int
    offset: int


class DeadLetter(NamedTuple):
    """A record of a dead letter topic: its key, the type of its error, and what it is made of."""

    key: str
    error: str
    source: LetterSource

    def __str__(self) -> str:
        return f"{self.key or 'without key'} of {self.source.topic}: {self.error}"


class Retry(NamedTuple):
    """A record of a retry topic: a message was postponed by so many tiers for one of its handlers."""

    tier: int
    key: str
    handler: str
    source: LetterSource


class Reference(NamedTuple):
    """A payload that a message refers to: fetched and verified, or what was wrong with it."""

    topic: str
    key: str
    size: int
    fault: str = ""


def with_files(purchase: Purchase) -> tuple[str, ...]:
    """Where the files of an order go by."""
    begins = OrderSubmitted if orchestrated(purchase) else OrderPlaced
    return begins.TOPIC, OrderDocumented.TOPIC, DocumentsPacked.TOPIC


async def dead_letters(bootstrap: Bootstrap, topics: Iterable[str]) -> list[DeadLetter]:
    """Every dead letter of these topics."""
    async with TopicReader(bootstrap, map(dead_letter_topic, topics)) as reader:
        return [dead_letter(record.key, dict(record.headers)) async for record in reader.to_end()]


def dead_letter(key: bytes | None, headers: Mapping[str, bytes]) -> DeadLetter:
    """Read a dead letter from its record."""
    topic, partition, offset = (headers[f"dlq-source-{part}"] for part in ("topic", "partition", "offset"))
    source = LetterSource(topic.decode(), int(partition), int(offset))
    return DeadLetter(_text(key), headers["dlq-error-type"].decode(), source)


async def retries(bootstrap: Bootstrap, topics: Iterable[str]) -> list[Retry]:
    """Every retry of messages of these topics that was postponed."""
    of = {retry_topic(topic, tier): (topic, tier) for topic, tier in product(topics, TIERS)}
    async with TopicReader(bootstrap, of) as reader:
        return [
            retry(*of[record.topic], record.key, dict(record.headers)) async for record in reader.to_end()
        ]


def retry(topic: str, tier: int, key: bytes | None, headers: Mapping[str, bytes]) -> Retry:
    """Read a retry from its record."""
    partition, offset = int(headers["retry-source-partition"]), int(headers["retry-source-offset"])
    return Retry(tier, _text(key), headers["retry-handler"].decode(), LetterSource(topic, partition, offset))


async def poison_sent(bootstrap: Bootstrap) -> Counter[str]:
    """How often each poisonous record was sent, by key."""
    async with TopicReader(bootstrap, [OrderPlaced.TOPIC]) as reader:
        sent = [record async for record in reader.to_end()]
    return Counter(_text(each.key) for each in sent if dict(each.headers).get(SOURCE) == POISON_SOURCE)


async def references(bootstrap: Bootstrap, claims: ClaimChecks) -> list[Reference]:
    """Every payload that orders and their files refer to. Each is fetched and verified by its digest.

    Raises BlobsUnavailable when the object store does not answer.
    """
    async with TopicReader(bootstrap, WITH_FILES) as reader:
        found = [record async for record in reader.to_end()]
    return [
        await followed(record.topic, _text(record.key), headers, claims)
        for record in found
        if (headers := dict(record.headers)).get(DATAREF) is not None  # Connect writes it without a value
    ]


async def followed(topic: str, key: str, headers: Mapping[str, bytes], claims: ClaimChecks) -> Reference:
    """Fetch a payload that a message with these headers refers to. Raises BlobsUnavailable."""
    try:
        return Reference(topic, key, len(await claims.check_out(headers)))
    except PermanentError as error:
        return Reference(topic, key, 0, str(error))


def _text(key: bytes | None) -> str:
    return (key or b"").decode(errors="replace")
