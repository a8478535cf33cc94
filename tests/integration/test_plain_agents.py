"""A plain agent of Faust's beside the lanes of one real worker, on real Kafka (docs/faust.md)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.integration.mixed_worker import ParcelSent, app
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
APP, AGENTS = "mixed", "mixed-agents"
SEEN_WITHIN = 60.0


def test_a_handler_and_a_plain_agent_run_in_one_worker(kafka, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(app.steadfaust, "bootstrap", kafka.bootstrap)
    run_both(kafka.bootstrap, tmp_path)


def run_both(bootstrap: str, tmp_path: Path, **other: str) -> None:
    """In one worker, with other settings if need be; who sends and reads connects to `bootstrap`."""
    # Faust leaves it to brokers to create what agents read.
    asyncio.run(create(bootstrap, "mixed.labels", "mixed.printed", "mixed.old-sent"))
    log = tmp_path / "worker.log"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "STEADFAUST_APP_ID": APP,
        "STEADFAUST_BOOTSTRAP": bootstrap,
        "STEADFAUST_VAR": str(tmp_path / "var"),
        "STEADFAUST_PARTITIONS": "2",
        "STEADFAUST_LANES": "2",
        "STEADFAUST_WEB_PORT": "0",
        **other,
    }
    command = [str(Path(sys.executable).parent / "faust"), "-A", "tests.integration.mixed_worker", "worker"]
    with log.open("wb") as output:
        worker = subprocess.Popen([*command, "-l", "warn"], env=environment, stdout=output, stderr=output)
    try:
        address = tmp_path / "var" / "workers" / APP / "slot-0" / "url"
        eventually(lambda: address.exists() and answers(f"{address.read_text()}/health/ready"), f"see {log}")
        asyncio.run(both_see_their_messages(bootstrap, address.read_text()))
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, log.read_text()


async def create(bootstrap: str, *topics: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
    finally:
        await admin.close()


async def both_see_their_messages(bootstrap: str, url: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as client:
        for label in ("first", "torn", "last"):
            await client.send_and_wait("mixed.labels", json.dumps(label).encode(), partition=0)
        await client.send_and_wait("mixed.old-sent", b'"p-2"', partition=0)
    async with app.client("by-hand") as client:
        await client.send(ParcelSent(parcel="p-1"), message_id="sent-1")

    consumer = AIOKafkaConsumer("mixed.printed", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(SEEN_WITHIN):
            printed = [json.loads((await consumer.getone()).value) for _ in range(3)]
    finally:
        await consumer.stop()
    # Faust acknowledges what an agent raised on, and goes on; what it has in a table stays.
    assert sorted(printed) == [["first", 1], ["last", 2], ["ready", 0]]
    for parcel in ("p-1", "p-2"):
        await until(lambda of=parcel: times_sent(url, of) == 1, f"the handler's row of {parcel}")
    await groups_are_apart(bootstrap)


async def groups_are_apart(bootstrap: str) -> None:
    """Each group has positions in its own topics alone; that of the agent has passed what it raised on."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        async with asyncio.timeout(SEEN_WITHIN):
            while True:
                agents = await admin.list_consumer_group_offsets(AGENTS)
                lanes = await admin.list_consumer_group_offsets(APP)
                labels = {tp.partition: found.offset for tp, found in agents.items() if found.offset > 0}
                if labels.get(0) == 3 and lanes:
                    break
                await asyncio.sleep(0.1)
    finally:
        await admin.close()
    assert {tp.topic for tp in agents} == {"mixed.labels", "mixed.old-sent"}
    assert {tp.topic for tp in lanes} == {ParcelSent.TOPIC, f"{APP}-operations"}


def times_sent(url: str, parcel: str) -> int:
    """What the handler has counted; 0 while there is no row."""
    found = json.loads(answers(f"{url}/api/tables/sent/rows?key={parcel}") or "{}")
    return sum(row["value"]["times"] for row in found.get("rows", []))


async def until(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(eventually, holds, what, SEEN_WITHIN)


def answers(url: str) -> str:
    """The page's text; empty when nobody answers, or not well."""
    try:
        with urlopen(url, timeout=60) as response:
            return str(response.read().decode())
    except OSError:
        return ""
