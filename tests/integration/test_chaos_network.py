"""A real broker and a real gateway behind a bad network. `scenarios/test_network.py` cuts workers off."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer

from agents.gateway import cards
from agents.gateway.client import HttpGateway
from chaos.rig.network import ClientNetwork
from streams.kafka.topics import KafkaTopics
from streams.local import Stack, declared, local_stack
from streams.ports import TopicSpec
from tests.waiting import eventually_async

NAME = "worker-1"
TOPIC = "network"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    processes = declared(Path(__file__).parents[2] / "pyproject.toml")
    with local_stack(tmp_path_factory.mktemp("network"), listeners=[NAME], processes=processes) as stack:
        yield stack


@pytest.fixture
def network(stack: Stack) -> Iterator[ClientNetwork]:
    with ClientNetwork(stack, [NAME]) as network:
        yield network


async def test_a_delay_makes_a_client_slower_and_nothing_else(stack: Stack, network: ClientNetwork) -> None:
    async with KafkaTopics(stack.bootstrap) as topics:
        await topics.create([TopicSpec(TOPIC, 3, 1)])
    async with AIOKafkaProducer(bootstrap_servers=network.bootstrap(NAME)) as client:
        with network.delay(NAME, 0.1) as happened:
            for partition in range(3):
                await client.send_and_wait(TOPIC, b"record", partition=partition)
        assert happened.count >= 6


def charges(stack: Stack, operation: str) -> int:
    with urlopen(f"{stack.url('gateway')}/ledger?limit=10000") as answer:
        return sum(row["operation"] == operation for row in json.load(answer)["rows"])


async def test_a_charge_whose_answer_is_lost_is_made_once(stack: Stack, network: ClientNetwork) -> None:
    async with HttpGateway(network.gateway(NAME)) as gateway:
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
