"""Real brokers and a real gateway behind the network that breaks: clients fail in time, and recover."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from agents.gateway import cards
from agents.gateway.client import HttpGateway
from chaos.rig.network import ClientNetwork
from streams.local import Stack, declared, local_stack
from streams.positions.declared import TopicSpec
from streams.runtime.kafka.topics import KafkaTopics
from tests.waiting import eventually_async

NAMES = ("worker-1", "worker-2")
TOPIC = "network"
PATIENCE = 3.0
"""Seconds after which these clients give a request up."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    processes = declared(Path(__file__).parents[2] / "pyproject.toml")
    var = tmp_path_factory.mktemp("network")
    with local_stack(var, listeners=NAMES, processes=processes) as stack:
        asyncio.run(create_topic(stack))
        yield stack


@pytest.fixture
def network(stack: Stack) -> Iterator[ClientNetwork]:
    with ClientNetwork(stack, NAMES) as network:
        yield network


async def create_topic(stack: Stack) -> None:
    async with KafkaTopics(stack.bootstrap) as topics:
        await topics.create([TopicSpec(TOPIC, 3, 1)])


@asynccontextmanager
async def producer(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(
        bootstrap_servers=bootstrap, request_timeout_ms=int(PATIENCE * 1000), retry_backoff_ms=50
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def sends(client: AIOKafkaProducer, *partitions: int) -> bool:
    """Whether a record for each of the partitions arrives."""
    try:
        for partition in partitions or (0, 1, 2):
            await client.send_and_wait(TOPIC, b"record", partition=partition)
    except KafkaError:
        return False
    return True


async def until_it_recovers(client: AIOKafkaProducer) -> None:
    """Wait until every partition can be written to again."""
    await eventually_async(lambda: sends(client), "the client has recovered")


@pytest.mark.parametrize("fault", ["blackhole", "cut"])
async def test_a_client_that_is_cut_off_fails_alone_and_recovers(network: ClientNetwork, fault: str) -> None:
    async with (
        producer(network.bootstrap("worker-1")) as ours,
        producer(network.bootstrap("worker-2")) as others,
    ):
        assert await sends(ours)
        with getattr(network, fault)("worker-1") as happened:
            assert not await sends(ours, 0)
            assert await sends(others)
            assert happened.count > 0
        await until_it_recovers(ours)


async def test_a_delay_makes_a_client_slower_and_nothing_else(network: ClientNetwork) -> None:
    async with producer(network.bootstrap("worker-1")) as client:
        assert await sends(client)
        with network.delay("worker-1", 0.1) as happened:
            assert await sends(client)
            assert happened.count >= 6
        assert await sends(client)


def charges(stack: Stack, operation: str) -> int:
    with urlopen(f"{stack.url('gateway')}/ledger?limit=10000") as answer:
        return sum(row["operation"] == operation for row in json.load(answer)["rows"])


async def test_a_charge_whose_answer_is_lost_is_made_once(stack: Stack, network: ClientNetwork) -> None:
    async with HttpGateway(network.gateway("worker-1")) as gateway:
        with network.gateway_loses_answers() as happened:
            request = asyncio.create_task(
                gateway.charge(operation="capture:lost", cents=100, card=cards.ACCEPTED)
            )
            await eventually_async(lambda: happened.count > 0, "an answer is lost")
            assert not request.done()
            assert charges(stack, "capture:lost") == 1
        charge = await request
    assert not charge.declined
    assert charges(stack, "capture:lost") == 1
