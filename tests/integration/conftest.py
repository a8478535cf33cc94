"""What tests of this folder share: databases, and an object store."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from streams.local import Stack, local_stack
from streams.postgres import Connection, Database
from streams.s3 import S3Blobs, S3Options
from streams.settings import LOCAL_BUCKET, LOCAL_KEYS
from tests.orders_shop import MIGRATIONS
from tests.postgres import in_a_loop, migrated
from tests.relays import Step, with_topics
from tests.wheels import built


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, most=10) as database:
        yield database


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.acquire() as connection:
        yield connection


@pytest.fixture
def orders_url(postgres_url: str) -> str:
    """Of a database that has the tables of the orders API, too."""
    in_a_loop(migrated(postgres_url, MIGRATIONS))
    return postgres_url


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that asks access rules, and allows what none is about. Tests of lanes make no
    topics there.
    """
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with local_stack(tmp_path_factory.mktemp("guarded"), broker_settings=settings) as stack:
        yield stack.bootstrap


@pytest.fixture
async def relays_bootstrap(kafka: Stack) -> str:
    """Of the shared broker, with the topics that relays publish to."""
    return await with_topics(kafka.bootstrap, Step.TOPIC, partitions=3)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One object store for all tests that leave it running."""
    with local_stack(tmp_path_factory.mktemp("s3"), brokers=0, buckets=[LOCAL_BUCKET]) as stack:
        yield stack


@pytest.fixture
async def blobs(s3: Stack) -> AsyncIterator[S3Blobs]:
    blobs = S3Blobs(S3Options(LOCAL_BUCKET, s3.url("s3"), *LOCAL_KEYS))
    yield blobs
    await blobs.delete([blob.name async for blob in blobs.scan("")])
    await blobs.close()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))
