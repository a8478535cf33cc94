"""What tests of relays share: messages whose order can be seen, and relays that run for a while."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from streams.host.client import TopicReader
from streams.kafka.topics import KafkaTopics
from streams.model.codecs import Schemas, avro
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.ports import Record, TopicSpec
from streams.postgres import Connection, Database, Outbox
from streams.postgres.outbox import OutboxRow
from streams.postgres.relay import Publisher, Relay, RelayOptions
from tests.waiting import BOUND, eventually_async

#: The topic of schemas.
ANNOUNCEMENTS = "relays-announcements"
QUICK = RelayOptions(poll=0.05, balance=0.1, first_retry=0.2, last_retry=0.4, outage_pause=0.2)


class Step(Message, frozen=True, kw_only=True):
    """The nth of an aggregate."""

    TOPIC = "shop.order.step.v1"
    order: str
    number: int
    note: str = ""

    @property
    def key(self) -> str:
        return self.order


class Billed(Step, frozen=True, kw_only=True):
    """The same, for another topic."""

    TOPIC = "shop.order.billed.v1"


class Stuck:
    """Comes to a point, and never goes on."""

    def __init__(self, point: str) -> None:
        self.is_there = asyncio.Event()
        self._point = point

    async def reach(self, point: str) -> None:
        if point == self._point:
            self.is_there.set()
            await asyncio.Event().wait()


def new_outbox(limit: int = 1_000_000) -> Outbox:
    return Outbox(avro(nothing_frozen, Schemas()), source="shop", limit=limit)


async def publish(
    outbox: Outbox, connection: Connection, *steps: tuple[str, int], kind: type[Step] = Step, note: str = ""
) -> None:
    """In one transaction; an id says what it is."""
    async with outbox.transaction(connection) as tx:
        for order, number in steps:
            tx.publish(kind(order=order, number=number, note=note), f"{order}:{number}")


def by_aggregate(rows: Iterable[OutboxRow]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for row in rows:
        found[row.aggregate_id].append(int(row.id.rpartition(":")[2]))
    return dict(found)


def first_time(numbers: Iterable[int]) -> list[int]:
    """Without repetitions."""
    return list(dict.fromkeys(numbers))


async def until(condition: Callable[[], Any], *, bound: float = BOUND) -> None:
    """Wait for a condition; it may be a coroutine function."""
    await eventually_async(condition, "what the relay is to bring about", every=0.02, bound=bound)


async def unpublished(database: Database) -> int:
    async with database.acquire() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM outbox WHERE published_at IS NULL"))


async def is_drained(database: Database) -> bool:
    return await unpublished(database) == 0


async def drained(database: Database, *, bound: float = BOUND) -> None:
    """Wait until no row waits."""
    await until(lambda: is_drained(database), bound=bound)


async def with_topics(bootstrap: str, *topics: str, partitions: int = 1) -> str:
    """Make what is not there yet of these topics, and the one of schemas; returns the address."""
    specs = [TopicSpec(ANNOUNCEMENTS, 1, 1), *(TopicSpec(each, partitions, 1) for each in topics)]
    async with KafkaTopics(bootstrap) as made:
        found = await made.describe([spec.name for spec in specs])
        await made.create(spec for spec in specs if spec.name not in found)
    return bootstrap


async def relayed(bootstrap: str, topic: str) -> list[Record]:
    async with TopicReader(bootstrap, [topic]) as reader:
        return [record async for record in reader.to_end()]


async def numbers_in(bootstrap: str, topic: str) -> dict[str, list[int]]:
    found = defaultdict(list)
    for record in await relayed(bootstrap, topic):
        order, _, number = dict(record.headers)["ce_id"].decode().rpartition(":")
        found[order].append(int(number))
    return found


async def are_refused(database: Database, rows: int) -> bool:
    counted = "SELECT count(*) FROM outbox WHERE attempts >= 2 AND published_at IS NULL"
    return bool(await database.pool.fetchval(counted) == rows)


@asynccontextmanager
async def relaying(
    url: str, publisher: Publisher, options: RelayOptions = QUICK, **more: Any
) -> AsyncIterator[Relay]:
    relay = Relay(url, publisher, options, **more)
    running = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        relay.stop()
        async with asyncio.timeout(BOUND):
            await running
