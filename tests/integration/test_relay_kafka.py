"""A row that a real Kafka refuses, and a polling relay. For both relays: `scenarios/test_relays.py`."""

import asyncio
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

from streams.kafka.clients import KafkaOptions
from streams.postgres import Connection, Database
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from tests.relays import (
    ANNOUNCEMENTS,
    Billed,
    Step,
    are_refused,
    drained,
    new_outbox,
    numbers_in,
    publish,
    relaying,
    until,
    with_topics,
)
from tests.waiting import BOUND

#: Who everybody is on a listener without authentication, the broker itself, too.
TO_EVERYBODY = (ResourceType.TOPIC, Billed.TOPIC, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
UNSEEN = [(AclOperation.DESCRIBE, AclPermissionType.DENY)]
_HIDDEN = pytest.mark.verify("five seconds: for a client it is as the topic that is not there, above")
READ_ONLY = [(AclOperation.READ, AclPermissionType.ALLOW), (AclOperation.WRITE, AclPermissionType.DENY)]


async def until_good_ones_pass(database: Database, bootstrap: str, good: str, refused: int) -> None:
    """Wait until so many rows are refused, publish one more of an aggregate, and wait for it."""
    await until(lambda: are_refused(database, refused))
    async with database.acquire() as connection:
        await publish(new_outbox(), connection, (good, 3))

    async def is_there() -> bool:
        return (await numbers_in(bootstrap, Step.TOPIC))[good] == [1, 2, 3]

    await until(is_there)


async def errors(database: Database) -> list[str]:
    rows = await database.pool.fetch("SELECT last_error FROM outbox WHERE attempts > 0 ORDER BY position")
    return [row["last_error"] for row in rows]


@pytest.mark.promise("outbox-refused")
async def test_what_a_broker_refuses_holds_back_its_aggregate_alone(
    database: Database, connection: Connection, relays_bootstrap: str
) -> None:
    large, unknown, good = (f"{kind}-{uuid4()}" for kind in ("large", "unknown", "good"))
    roomy = new_outbox(limit=10_000_000)
    await publish(roomy, connection, (large, 1), (unknown, 1), (good, 1))
    await publish(roomy, connection, (large, 2), note="n" * 2_000_000)
    await publish(roomy, connection, (unknown, 2), kind=Billed)
    await publish(roomy, connection, (large, 3), (unknown, 3), (good, 2))
    # So large a batch leaves the relay, and the broker refuses it.
    publisher = KafkaPublisher(relays_bootstrap, ANNOUNCEMENTS, KafkaOptions(max_batch=4_000_000))
    async with relaying(database.url, publisher):
        await until_good_ones_pass(database, relays_bootstrap, good, refused=2)
        found = await numbers_in(relays_bootstrap, Step.TOPIC)
        assert [found[large], found[unknown]] == [[1], [1]]
        too_large, not_there = await errors(database)
        assert "MessageSizeTooLarge" in too_large
        assert Billed.TOPIC in not_there
        await connection.execute("DELETE FROM outbox WHERE attempts > 0")
        await drained(database)
    found = await numbers_in(relays_bootstrap, Step.TOPIC)
    assert [found[large], found[unknown]] == [[1, 3], [1, 3]]


@pytest.mark.promise("outbox-refused", "a topic that it may not see, one that it may only read")
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        pytest.param(UNSEEN, "does not let this client see it", marks=_HIDDEN, id="not to be seen"),
        pytest.param(READ_ONLY, "TopicAuthorizationFailed", id="only to be read"),
    ],
)
async def test_a_topic_without_access_holds_back_its_aggregate_alone(
    guarded: str, database: Database, connection: Connection, rules: list[Any], said: str
) -> None:
    denied, good = (f"{kind}-{uuid4()}" for kind in ("denied", "good"))
    await with_topics(guarded, Step.TOPIC, Billed.TOPIC)
    admin = AdminClient({"bootstrap.servers": guarded})
    await all_of(admin.create_acls([AclBinding(*TO_EVERYBODY, *rule) for rule in rules]))
    outbox = new_outbox()
    await publish(outbox, connection, (denied, 1), (good, 1))
    await publish(outbox, connection, (denied, 2), kind=Billed)
    await publish(outbox, connection, (denied, 3), (good, 2))
    async with relaying(database.url, KafkaPublisher(guarded, ANNOUNCEMENTS)):
        await until_good_ones_pass(database, guarded, good, refused=1)
        assert (await numbers_in(guarded, Step.TOPIC))[denied] == [1]
        (error,) = await errors(database)
        assert said in error
        await all_of(admin.delete_acls([AclBindingFilter(*TO_EVERYBODY, *rule) for rule in rules]))
        await drained(database)
    assert (await numbers_in(guarded, Step.TOPIC))[denied] == [1, 3]
    assert (await numbers_in(guarded, Billed.TOPIC))[denied] == [2]


async def all_of(asked: dict[Any, Future[Any]]) -> None:
    for each in asked.values():
        await asyncio.to_thread(each.result, BOUND)
