"""Orders over HTTP: into PostgreSQL, by its outbox to Kafka, through the services, and their status back."""

import re
import signal
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from agents.inventory import __main__ as inventory
from tests.postgres import in_a_loop, migrated
from tests.scenarios.collector import Collected, collecting
from tests.scenarios.shop import MIGRATIONS, Shop, relaying
from tests.scenarios.world import World
from tests.waiting import BOUND

CALLER = "00f067aa0ba902b7"


def chains(spans: list[Collected]) -> set[tuple[str, ...]]:
    """From the caller to each span: who did it."""
    by_id = {span.span: span for span in spans}

    def chain(span: Collected) -> tuple[str, ...]:
        name = str(span.attributes.get("messaging.operation.name", span.name))
        return (name,) if span.parent == CALLER else (*chain(by_id[span.parent]), name)

    return {chain(span) for span in spans}


@pytest.fixture
def shop(world: World, postgres_url: str) -> Iterator[Shop]:
    in_a_loop(migrated(postgres_url, MIGRATIONS))
    with relaying(world, postgres_url):
        yield Shop(world, postgres_url)


@pytest.mark.promise("api-to-kafka")
@pytest.mark.promise("api-status")
def test_an_order_placed_over_http_is_settled_once(
    world: World, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world._environment().items():
        monkeypatch.setenv(name, value)
    world.until_shared([world.start_worker(**shop.settings)])
    before = world.stock()["sku-1"].on_hand
    for _ in range(2):  # repeated under its name, a delivery changes nothing
        assert inventory.main(["d-1", "sku-1=7", "sku-2=9"]) == 0
        assert world.stock()["sku-1"].on_hand == before + 7, "it returns when the pieces are on the shelves"
    world.received.update({"sku-1": 7, "sku-2": 9})
    ids = shop.place("http", range(40))
    shop.until_told(ids)
    world.check()
    ways = {each["way"] for each in shop.ask("GET", "/orders")[1]["orders"]}
    assert ways == {"placed", "submitted"}
    assert shop.ask("GET", "/health") == (200, {"status": "OK", "reasons": []})
    status, said = shop.ask("DELETE", f"/orders/{ids[5]}")
    assert (status, said["order_status"]) == (409, "confirmed")
    with urlopen(f"{shop.url}/metrics", timeout=BOUND) as answer:
        scrape = answer.read().decode()
    told = re.findall(r"consumer_inbox_processed_total\{.*orders-projection.*\} (\S+)", scrape)
    assert sum(map(float, told)) == len(ids)


@pytest.mark.promise("api-to-kafka")
@pytest.mark.verify("an order placed over HTTP, beside it")
def test_an_order_called_off_over_http_ends_as_kafka_says(world: World, shop: Shop) -> None:
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


@pytest.mark.verify("lane/test_lane_traces.py")
def test_an_order_is_one_trace_to_its_end(world: World, shop: Shop) -> None:
    """Order 4 is placed and confirmed; order 0 has a saga, and a card that is declined."""
    traces = {number: f"{number + 1:032x}" for number in (0, 4)}
    with collecting() as collector:
        worker = world.start_worker(
            **shop.settings,
            STEADFAUST_TRACES="otlp",
            STEADFAUST_TRACE_RATIO="0",  # what its caller records is recorded all the same
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        )
        world.until_shared([worker])
        for number, trace in traces.items():
            shop.until_told(shop.place("traced", range(number, number + 1), f"00-{trace}-{CALLER}-01"))
        shop.until_told(shop.place("untraced", range(5, 6)))
        world.check()
        assert worker.stop() == 0  # what waits is exported first
    undone, confirmed = (collector.of_trace(trace) for trace in traces.values())
    assert len(undone) + len(confirmed) == len(collector.of_trace(""))
    assert max(chains(confirmed), key=len) == (
        "POST /orders",
        "publish",
        *("inventory.split_order", "inventory.reserve_line", "inventory.gather"),
        *("payments.capture", "shipping.schedule", "inventory.ship", "inventory.ship_line"),
    )
    assert any(chain[-2:] == ("shipping.schedule", "orders.confirm") for chain in chains(confirmed))
    assert max(chains(undone), key=len) == (
        "POST /orders",
        "publish",
        *("orders.order_saga", "inventory-steps.reserve", "inventory.reserve_line", "inventory.gather"),
        *("inventory-steps.answer", "orders.order_saga", "payment-steps.capture", "orders.order_saga"),
        *("inventory-steps.release", "inventory.release_line", "inventory.gather_released"),
        *("inventory-steps.answer", "orders.order_saga", "orders.settle"),
    )
    handled = [span for span in undone + confirmed if "steadfaust.attempt" in span.attributes]
    assert {span.attributes["steadfaust.transaction"] for span in handled} == {"committed"}
    assert {span.service for span in confirmed} == {
        *("orders-api", "orders", "inventory", "payments", "shipping")
    }


@pytest.mark.promise("api-to-kafka")
@pytest.mark.promise("api-status")
@pytest.mark.verify("a worker is killed, and its lanes and its place in the group take seconds to come back")
def test_a_worker_killed_with_its_api_loses_no_order(world: World, shop: Shop) -> None:
    world.until_shared([first := world.start_worker(**shop.settings)])
    ids = shop.place("kill", range(40))
    first.signal(signal.SIGKILL)
    world.start_worker(**shop.settings)
    ids += shop.place("kill", range(30, 60))  # ten of them once more
    shop.until_told(ids)
    world.check()
