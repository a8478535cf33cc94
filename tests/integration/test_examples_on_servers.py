"""The examples that need servers: a worker with a plain agent, and an outbox with its relay and inbox."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer

from examples.outbox_to_inbox import OrderSold, run
from streams.postgres import Database
from streams.runtime.outbox_publisher import KafkaPublisher
from tests.integration.worker_process import ROOT, environment_of, page, until_ready, working
from tests.relays import ANNOUNCEMENTS, relaying, with_topics
from tests.waiting import BOUND, eventually


def test_a_plain_agent_counts_views_beside_a_lane(kafka: Any, tmp_path: Path) -> None:
    environment = environment_of("example-shop", kafka.bootstrap, tmp_path)
    with working("examples.plain_agent", environment) as log:
        url = until_ready(environment, log)
        command = [sys.executable, "-m", "examples.plain_agent"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=BOUND)
        rows = f"{url}/api/tables/orders-of-customers/rows?key=ada"
        eventually(lambda: '"placed":1' in page(rows).replace(" ", ""), f"a row; see {log}")
        totals = asyncio.run(first_of(kafka.bootstrap, "examples.page.totals", 3))
    assert totals == [("/lamps", 1), ("/lamps", 2), ("/chairs", 1)]


async def first_of(bootstrap: str, topic: str, records: int) -> list[tuple[str, int]]:
    """The first records of a topic with one partition."""
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(BOUND):
            found = [await consumer.getone() for _ in range(records)]
    return [(each.key.decode(), json.loads(each.value)) for each in found]


async def test_a_message_of_the_outbox_is_booked_once(
    postgres_url: str, database: Database, kafka: Any
) -> None:
    bootstrap = await with_topics(kafka.bootstrap)
    async with relaying(postgres_url, KafkaPublisher(bootstrap, ANNOUNCEMENTS)), asyncio.timeout(BOUND):
        results = await run(bootstrap, database, OrderSold(order_id="o-1", cents=4900))
    assert results == ["o-1", None]
    sales = await database.pool.fetch("SELECT id, cents FROM example_sales")
    assert [tuple(row) for row in sales] == [("o-1", 4900)]
