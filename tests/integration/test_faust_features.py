"""What of Faust works beside lanes, with a control: the same code on Faust's own app, on the same broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from tests.integration.test_plain_agents import create
from tests.integration.worker_process import environment_of, working
from tests.waiting import BOUND

#: What it tells: an answer to `.ask()` does not come to either.
FOUND = {"leader", "passed", "rebalanced", "silent"}


@pytest.mark.verify("a minute, for Faust's own behaviour; tests/unit/runtime/test_worker.py holds ours")
@pytest.mark.parametrize("stock", [True, False], ids=["Faust alone", "beside lanes"])
def test_what_faust_has_works_beside_lanes_alike(kafka, tmp_path: Path, stock: bool) -> None:
    said, seen = f"features.said.{stock}", f"features.seen.{stock}"
    asyncio.run(create(kafka.bootstrap, said, seen))
    environment = environment_of("features", kafka.bootstrap, tmp_path)
    if stock:
        environment["STOCK"] = "yes"
    with working("tests.integration.faust_features", environment):
        assert asyncio.run(told(kafka.bootstrap, seen)) == FOUND


async def told(bootstrap: str, topic: str) -> set[str]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    found: set[str] = set()
    try:
        async with asyncio.timeout(BOUND):
            while len(found) < len(FOUND):
                found.add(json.loads((await consumer.getone()).value))
    finally:
        await consumer.stop()
    return found
