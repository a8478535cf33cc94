"""What of Faust works beside lanes, with a control: the same code on Faust's own app, on the same broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from tests.integration.test_plain_agents import create
from tests.integration.worker_process import environment_of, start
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
    tmp_path.mkdir(exist_ok=True)
    worker = start("tests.integration.faust_features", environment, tmp_path / "worker.log")
    try:
        assert asyncio.run(told(kafka.bootstrap, seen)) == FOUND
    finally:
        # Stopped within a rebalance, either hangs now and then in aiokafka's wait for metadata.
        worker.kill()
        worker.wait(BOUND)


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
