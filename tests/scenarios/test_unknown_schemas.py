"""A client that was deployed before the workers: its orders wait for its schema, and nobody else's do."""

import asyncio
import json
import time
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer

from agents.messages import OrderPlaced
from schemas import latest
from streams.model.codecs import fingerprint_of
from streams.model.layout import Layout
from tests import effort
from tests.scenarios.desk import steadfaust
from tests.scenarios.world import APP, LANES, PARTITIONS, Worker, World
from tests.waiting import BOUND, eventually

pytestmark = pytest.mark.promise("unknown-schema", "a real worker that learns the schema")

#: What the client's version adds, at the end.
CHANNEL = {"name": "channel", "type": "string", "default": ""}


def newer() -> str:
    schema = json.loads(latest(OrderPlaced.TOPIC))
    schema["fields"].append(CHANNEL)
    return json.dumps(schema)


def announce(world: World, schema: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=world.bootstrap) as producer:
            key = f"schema:{fingerprint_of(schema)}".encode()
            topic = Layout(APP, PARTITIONS, LANES).announcements
            await producer.send_and_wait(topic, schema.encode(), key=key, partition=0)

    asyncio.run(produce())


def place_as_newer(world: World, schema: str, monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    ours = world.codec(OrderPlaced)
    theirs = SimpleNamespace(
        encode=lambda order: ours.encode(order) + b"\x06web", fingerprint=fingerprint_of(schema).encode()
    )
    with monkeypatch.context() as patch:
        patch.setattr(world, "codec", lambda _: theirs)
        return world.place("newer", count)


def warnings(worker: Worker) -> list[str]:
    (started,) = worker.events("worker_started")
    with urlopen(f"{started['web'].rstrip('/')}/health/ready", timeout=BOUND) as response:
        assert response.status == 200
        found: list[str] = json.load(response)["warnings"]
        return found


def test_orders_of_a_late_schema_wait_others_are_settled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, schema = world.start_worker(), newer()
    world.until_shared([worker])
    waiting = place_as_newer(world, schema, monkeypatch, count=40)  # in every partition
    others = world.place("others", 100)
    world.until_settled(others)
    assert world.settled(waiting) == 0
    told = f"40 keys wait for schema {fingerprint_of(schema)}, for inventory.split_order, since "
    eventually(lambda: any(each.startswith(told) for each in warnings(worker)), "all 40 are told of")
    listed = {each["handler"]: each["schemas"] for each in steadfaust(world, "handler", "list")}
    waits = [(each["schema"], each["keys"]) for each in listed["inventory.split_order"]]
    assert waits == [(fingerprint_of(schema), 40)]
    announced = time.monotonic()
    announce(world, schema)
    world.until_settled(waiting)
    assert not effort.is_all() or time.monotonic() - announced < 30.0
    assert warnings(worker) == []
    world.check()
