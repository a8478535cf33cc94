"""Examples that need servers, and a plain agent of Faust beside lanes (docs/faust.md)."""

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import NewTopic

from examples.outbox_to_inbox import OrderSold, run
from streams.postgres import Database
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from tests.integration.mixed_worker import ParcelSent, app
from tests.integration.worker_process import ROOT, environment_of, page, until_ready, working
from tests.kafka_admin import administering
from tests.relays import ANNOUNCEMENTS, relaying, with_topics
from tests.waiting import BOUND, eventually, eventually_async


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


@pytest.mark.promise("sources")
def test_each_order_of_an_existing_topic_earns_points_once(kafka: Any, tmp_path: Path) -> None:
    environment = environment_of("example-points", kafka.bootstrap, tmp_path)
    command = [sys.executable, "-m", "examples.existing_topic"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=BOUND)
    with working("examples.existing_topic", environment) as log:
        url = until_ready(environment, log)
        rows = f"{url}/api/tables/points/rows?key=ada"
        eventually(
            lambda: '"points":98' in page(rows).replace(" ", ""), f"the points of two orders; see {log}"
        )
        assert "examples.shop.orders" in page(f"{url}/api/topics")
        assert "source.examples.shop.orders" in page(f"{url}/api/overview")
    made = asyncio.run(topics_of(kafka.bootstrap))
    assert {each for each in made if "shop.orders" in each} == {
        "examples.shop.orders",
        "example-points-examples.shop.orders.dlq",
        *(f"example-points-examples.shop.orders.retry-{tier}" for tier in (1, 2, 3)),
    }


async def topics_of(bootstrap: str) -> list[str]:
    async with administering(bootstrap) as admin:
        return list(await admin.list_topics())


async def first_of(bootstrap: str, topic: str, records: int) -> list[tuple[str, int]]:
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


APP, AGENTS = "mixed", "mixed-agents"


def test_a_handler_and_a_plain_agent_run_in_one_worker(kafka, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(app.steadfaust, "bootstrap", kafka.bootstrap)
    run_both(kafka.bootstrap, tmp_path)


def test_a_worker_without_handlers_runs_its_agents(kafka, tmp_path: Path) -> None:
    asyncio.run(create(kafka.bootstrap, "agents.said", "agents.heard"))
    environment = environment_of("agents", kafka.bootstrap, tmp_path)
    with working("tests.integration.agents_worker", environment) as log:
        until_ready(environment, log)
        asyncio.run(heard_again(kafka.bootstrap))
    assert "lane_" not in log.read_text()


async def heard_again(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as client:
        await client.send_and_wait("agents.said", b'"hello"', partition=0)
    async with AIOKafkaConsumer(
        "agents.heard", bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(BOUND):
            assert json.loads((await consumer.getone()).value) == "hello"


def run_both(bootstrap: str, tmp_path: Path, **other: str) -> None:
    """In one worker, with other settings if need be; who sends and reads connects to `bootstrap`."""
    # Faust leaves it to brokers to create what agents read.
    asyncio.run(create(bootstrap, "mixed.labels", "mixed.printed", "mixed.old-sent"))
    environment = environment_of(APP, bootstrap, tmp_path) | other
    with working("tests.integration.mixed_worker", environment) as log:
        asyncio.run(both_see_their_messages(bootstrap, until_ready(environment, log)))


async def create(bootstrap: str, *topics: str) -> None:
    async with administering(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])


async def both_see_their_messages(bootstrap: str, url: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as client:
        for label in ("first", "torn", "last"):
            await client.send_and_wait("mixed.labels", json.dumps(label).encode(), partition=0)
        await client.send_and_wait("mixed.old-sent", b'"p-2"', partition=0)
    async with app.client("by-hand") as client:
        await client.send(ParcelSent(parcel="p-1"), message_id="sent-1")

    async with AIOKafkaConsumer(
        "mixed.printed", bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(BOUND):
            printed = [json.loads((await consumer.getone()).value) for _ in range(3)]
    # Faust acknowledges what an agent raised on, and goes on; what it has in a table stays.
    assert sorted(printed) == [["first", 1], ["last", 2], ["ready", 0]]
    for parcel in ("p-1", "p-2"):
        is_counted = partial(asyncio.to_thread, lambda of=parcel: times_sent(url, of) == 1)
        await eventually_async(is_counted, f"the handler's row of {parcel}")
    await groups_are_apart(bootstrap)


async def groups_are_apart(bootstrap: str) -> None:
    """Each group has positions in its own topics alone; that of the agent has passed what it raised on."""
    async with administering(bootstrap) as admin:

        async def positions(group: str) -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for tp, position in (await admin.list_consumer_group_offsets(group)).items():
                found.setdefault(tp.topic, []).append(position.offset)
            return found

        async def have_passed() -> bool:
            agents = await positions(AGENTS)
            return agents.get("mixed.labels") == [3] and bool(await positions(APP))

        await eventually_async(have_passed, "both groups have committed")
        assert (await positions(AGENTS)).keys() == {"mixed.labels", "mixed.old-sent"}
        assert {each for each in await positions(APP) if not each.endswith("-changelog")} == {
            ParcelSent.TOPIC,
            f"{APP}-{ParcelSent.TOPIC}-repartition",
            f"{APP}-operations",
        }


def times_sent(url: str, parcel: str) -> int:
    """What the handler has counted; 0 while there is no row."""
    found = json.loads(page(f"{url}/api/tables/sent/rows?key={parcel}") or "{}")
    return sum(row["value"]["times"] for row in found.get("rows", []))
