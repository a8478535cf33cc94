"""Orders over HTTP: into PostgreSQL, by its outbox to Kafka, through the services, and their status back."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from streams.postgres import MigrationSet
from streams.postgres.database import connect
from streams.postgres.outbox import OutboxRow, record_of
from tests.postgres import in_a_loop, migrated
from tests.scenarios.world import World, eventually, order

MIGRATIONS = MigrationSet("orders", Path("agents/api/migrations").resolve())
COLUMNS = ", ".join(name for name in OutboxRow._fields if name != "age")


class Shop:
    """A client of the API that one of the workers serves."""

    def __init__(self, world: World, postgres: str) -> None:
        self._postgres = postgres
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.settings = {
            "STEADFAUST_POSTGRES_URL": postgres,
            "STEADFAUST_API_PORT": str(port),
            "STEADFAUST_ORDERS_WAY": "both",
        }
        self._world = world

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Status 0: nobody answers."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key} if key else {}
        data = msgspec.json.encode(body) if body is not None else None
        try:
            with urlopen(Request(f"{self.url}{path}", data, headers, method=method), timeout=10) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.status or 0, json.load(error)
        except OSError:  # refused, reset, or no answer in time
            return 0, None

    def place(self, run: str, numbers: range) -> list[str]:
        """Place each order until it is answered 202, and once more."""
        for number in numbers:
            placed, outcome = order(number, run)
            key = f"key-{placed.order_id}"

            def taken(body: Any = placed, key: str = key) -> bool:
                return self.ask("POST", "/orders", body, key)[0] == 202

            eventually(taken, f"{key} is taken", 60)
            eventually(taken, f"{key} is answered again", 60)
            self._world.expected[placed.order_id] = (outcome, placed.total_cents)
        return [f"{run}-{number}" for number in numbers]

    def statuses(self) -> dict[str, tuple[str, str]]:
        """Status and reason of every order, as PostgreSQL has them."""

        async def fetch() -> dict[str, tuple[str, str]]:
            connection = await connect(self._postgres)
            try:
                rows = await connection.fetch("SELECT id, status, reason FROM orders")
            finally:
                await connection.close()
            return {row["id"]: (row["status"], row["reason"]) for row in rows}

        return in_a_loop(fetch())

    def until_told(self, ids: list[str]) -> None:
        """Wait until PostgreSQL says of each order what Kafka says."""

        def told() -> bool:
            found = self.statuses()
            return all(found[name][0] != "pending" for name in ids)

        eventually(told, "every order has its status in PostgreSQL", 60)
        found, outcomes = self.statuses(), self._world.outcomes()
        for name in ids:
            (outcome,) = outcomes[name]
            expected = ("confirmed", "") if outcome == "confirmed" else ("cancelled", outcome)
            assert found[name] == expected


@pytest.fixture
def shop(world: World, postgres_url: str) -> Iterator[Shop]:
    in_a_loop(migrated(postgres_url, MIGRATIONS))
    with relaying(postgres_url, world.bootstrap):
        yield Shop(world, postgres_url)


@contextmanager
def relaying(postgres: str, bootstrap: str) -> Iterator[None]:
    """A relay of a few lines, for the time of the block."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: in_a_loop(relay(postgres, bootstrap, stop)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def relay(postgres: str, bootstrap: str, stop: threading.Event) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    connection = await connect(postgres)
    await producer.start()
    try:
        while not stop.is_set():
            rows = await connection.fetch(
                f"SELECT {COLUMNS}, 0.0 AS age FROM outbox WHERE published_at IS NULL ORDER BY position"
            )
            for row in map(OutboxRow._make, rows):
                sent = record_of(row)
                await producer.send_and_wait(row.topic, sent.value, key=sent.key, headers=list(sent.headers))
                await connection.execute("UPDATE outbox SET published_at = now() WHERE id = $1", row.id)
            await asyncio.sleep(0.05)
    finally:
        await producer.stop()
        await connection.close()


def test_an_order_placed_over_http_is_settled_once_and_postgresql_says_how(world: World, shop: Shop) -> None:
    world.until_shared([world.start_worker(**shop.settings)])
    ids = shop.place("http", range(40))
    shop.until_told(ids)
    world.check()
    ways = {each["way"] for each in shop.ask("GET", "/orders")[1]["orders"]}
    assert ways == {"placed", "submitted"}
    assert shop.ask("GET", "/health") == (200, {"status": "OK", "reasons": []})
    status, said = shop.ask("DELETE", f"/orders/{ids[5]}")
    assert (status, said["order_status"]) == (409, "confirmed")
    with urlopen(f"{shop.url}/metrics", timeout=10) as answer:
        scrape = answer.read().decode()
    told = re.findall(r"consumer_inbox_processed_total\{.*orders-projection.*\} (\S+)", scrape)
    assert sum(map(float, told)) == len(ids)


def test_an_order_that_is_called_off_over_http_ends_as_kafka_says(world: World, shop: Shop) -> None:
    world.until_shared([world.start_worker(**shop.settings)])
    ids = shop.place("off", range(5, 15))
    for name in ids:
        status, said = shop.ask("DELETE", f"/orders/{name}")
        assert status in (202, 409), said
    shop.until_told(ids)
    outcomes = world.outcomes()
    for name in ids:
        found = shop.ask("GET", f"/orders/{name}")[1]
        if found["status"] == "cancelled":
            assert (found["reason"], found["cancellation"]) == ("cancelled", "requested")
        world.expected[name] = (outcomes[name][0], world.expected[name][1])
    world.check()


@pytest.mark.verify("a worker is killed, and its lanes and its place in the group take seconds to come back")
def test_a_worker_that_is_killed_with_its_api_loses_and_doubles_no_order(world: World, shop: Shop) -> None:
    world.until_shared([first := world.start_worker(**shop.settings)])
    ids = shop.place("kill", range(40))
    first.signal(signal.SIGKILL)
    world.start_worker(**shop.settings)
    ids += shop.place("kill", range(30, 60))  # ten of them once more
    shop.until_told(ids)
    world.check()
