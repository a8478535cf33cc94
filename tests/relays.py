"""What tests of relays share: messages whose order can be seen, and relays that run for a while."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from streams.model.codecs import Schemas, avro
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.postgres import Connection, Database, Outbox
from streams.postgres.outbox import OutboxRow
from streams.postgres.relay import Publisher, Relay, RelayOptions

BOUND = 30.0
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
    """The numbers of each aggregate, as they came."""
    found = defaultdict(list)
    for row in rows:
        found[row.aggregate_id].append(int(row.id.rpartition(":")[2]))
    return dict(found)


def first_time(numbers: Iterable[int]) -> list[int]:
    """Without repetitions."""
    return list(dict.fromkeys(numbers))


async def until(condition: Callable[[], Any], bound: float = BOUND) -> None:
    """Wait for a condition; it may be a coroutine function."""
    async with asyncio.timeout(bound):
        while True:
            holds = condition()
            if asyncio.iscoroutine(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(0.02)


async def unpublished(database: Database) -> int:
    """Rows that wait."""
    async with database.acquire() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM outbox WHERE published_at IS NULL"))


async def drained(database: Database, bound: float = BOUND) -> None:
    """Wait until no row waits."""

    async def empty() -> bool:
        return await unpublished(database) == 0

    await until(empty, bound)


@asynccontextmanager
async def relaying(
    url: str, publisher: Publisher, options: RelayOptions = QUICK, **more: Any
) -> AsyncIterator[Relay]:
    """A relay that runs for the time of the block."""
    relay = Relay(url, publisher, options, **more)
    running = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        relay.stop()
        async with asyncio.timeout(BOUND):
            await running
