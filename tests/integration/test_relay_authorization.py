"""A relay and a broker that has access rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from streams.local import local_stack
from streams.postgres import Database
from streams.runtime.client import TopicReader
from streams.runtime.declared import TopicSpec
from streams.runtime.outbox_publisher import KafkaPublisher
from streams.runtime.topics import KafkaTopics
from tests.relays import Billed, Step, drained, new_outbox, publish, relaying, until

ANNOUNCEMENTS = "relay-announcements"
#: Who everybody is on a listener without authentication, the broker itself, too.
TO_EVERYBODY = (ResourceType.TOPIC, Billed.TOPIC, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
UNSEEN = [(AclOperation.DESCRIBE, AclPermissionType.DENY)]
READ_ONLY = [(AclOperation.READ, AclPermissionType.ALLOW), (AclOperation.WRITE, AclPermissionType.DENY)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that asks access rules, and allows what none is about."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with local_stack(tmp_path_factory.mktemp("guarded"), broker_settings=settings) as stack:
        yield stack.bootstrap


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url) as database:
        yield database


async def numbers(bootstrap: str, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    async with TopicReader(bootstrap, [topic]) as reader:
        async for record in reader.to_end():
            order, _, number = dict(record.headers)["ce_id"].decode().rpartition(":")
            found.setdefault(order, []).append(int(number))
    return found


@pytest.mark.parametrize(
    ("rules", "said"),
    [(UNSEEN, "does not let this client see it"), (READ_ONLY, "TopicAuthorizationFailed")],
    ids=["a topic that it may not see", "a topic that it may only read"],
)
async def test_a_topic_without_access_holds_back_its_aggregate_alone(
    guarded: str, database: Database, rules: list[tuple[AclOperation, AclPermissionType]], said: str
) -> None:
    denied, good = (f"{kind}-{uuid4()}" for kind in ("denied", "good"))
    async with KafkaTopics(guarded) as topics:
        await topics.create(TopicSpec(name, 1, 1) for name in (ANNOUNCEMENTS, Step.TOPIC, Billed.TOPIC))
    admin = AdminClient({"bootstrap.servers": guarded})
    await all_of(admin.create_acls([AclBinding(*TO_EVERYBODY, *rule) for rule in rules]))
    async with database.acquire() as connection:
        outbox = new_outbox()
        await publish(outbox, connection, (denied, 1), (good, 1))
        await publish(outbox, connection, (denied, 2), kind=Billed)
        await publish(outbox, connection, (denied, 3), (good, 2))
        async with relaying(database.url, KafkaPublisher(guarded, ANNOUNCEMENTS)):

            async def tried() -> bool:
                waiting = "SELECT count(*) FROM outbox WHERE attempts >= 2 AND published_at IS NULL"
                return await connection.fetchval(waiting) == 1

            await until(tried)
            await publish(outbox, connection, (good, 3))

            async def good_is_there() -> bool:
                return (await numbers(guarded, Step.TOPIC)).get(good) == [1, 2, 3]

            await until(good_is_there)
            assert (await numbers(guarded, Step.TOPIC))[denied] == [1]
            assert said in await connection.fetchval("SELECT last_error FROM outbox WHERE attempts > 0")
            await all_of(admin.delete_acls([AclBindingFilter(*TO_EVERYBODY, *rule) for rule in rules]))
            await drained(database)
    assert (await numbers(guarded, Step.TOPIC))[denied] == [1, 3]
    assert (await numbers(guarded, Billed.TOPIC))[denied] == [2]


async def all_of(asked: dict[Any, Future[Any]]) -> None:
    """Wait for what an admin client was asked for."""
    for each in asked.values():
        await asyncio.to_thread(each.result, 20)
