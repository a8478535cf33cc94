"""A worker goes on beside partitions that somebody adds, and says at once which topic is gone."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agents.messages import OrderPlaced, StockReceived
from tests.recreated_kafka import add_partitions, delete_topic
from tests.scenarios.world import PARTITIONS, World
from tests.waiting import BOUND, eventually

pytestmark = pytest.mark.verify("lane/test_lane_topics.py has it on Kafka, without processes")


def warnings(web: str) -> list[str]:
    with urlopen(f"{web.rstrip('/')}/health/ready", timeout=BOUND) as response:
        found: dict[str, Any] = json.load(response)
    return list(found["warnings"])


def test_a_worker_goes_on_beside_added_partitions(world: World) -> None:
    worker = world.start_worker()
    world.until_shared([worker])
    first = world.place("before", 20)
    world.until_settled(first)
    asyncio.run(add_partitions(world.bootstrap, OrderPlaced.TOPIC, PARTITIONS + 2))
    added = world.place("added", 60)  # by a client's own partitioner, over all of them
    world.until_settled(added)
    said = {(event["topic"], event["partitions"]) for event in worker.events("partitions_added")}
    assert said == {(OrderPlaced.TOPIC, PARTITIONS + 2)}
    assert worker.stop() == 0
    again = world.start_worker()
    world.until_shared([again])
    world.until_settled(world.place("after", 60))
    world.check()


def test_a_topic_that_is_gone_shows_within_seconds(world: World) -> None:
    worker = world.start_worker()
    world.until_shared([worker])
    (started,) = worker.events("worker_started")
    asyncio.run(delete_topic(world.bootstrap, StockReceived.TOPIC))
    gone = f"topic {StockReceived.TOPIC} is gone"
    eventually(lambda: any(text.startswith(gone) for text in warnings(started["web"])), gone)
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{started['web'].rstrip('/')}/api/tables/orders/rows?key=of-nobody", timeout=BOUND).close()
    with refused.value as answer:
        assert json.load(answer)["error"] == "no_row", "a look-up says what there is"
