"""Orders over HTTP: into PostgreSQL, by its outbox to Kafka, through the services, and their status back."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from streams.postgres.cdc import RelayKind
from tests.postgres import in_a_loop, migrated
from tests.scenarios.shop import MIGRATIONS, Shop, relaying
from tests.scenarios.world import World


@pytest.fixture
def shop(world: World, postgres_url: str) -> Iterator[Shop]:
    in_a_loop(migrated(postgres_url, MIGRATIONS))
    with relaying(world, postgres_url, RelayKind.POLL):
        yield Shop(world, postgres_url)


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
