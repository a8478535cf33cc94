"""What became of orders, written into a real PostgreSQL; the records are made here."""

import asyncio

import pytest

from agents.api.projection import Projection
from agents.cancellation import CancellationRefused
from agents.messages import OrderConfirmed
from agents.settings import OrderSettings
from streams.postgres import Database
from tests.integration.told_orders import cancelled, confirmed, order, told
from tests.waiting import BOUND

pytestmark = pytest.mark.usefixtures("orders_url")


@pytest.fixture
def projection(database: Database) -> Projection:
    return Projection(OrderSettings(bootstrap="nowhere:1"), database)


async def test_the_projection_tries_again_after_an_unexpected_error(
    projection: Projection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, again = 0, asyncio.Event()

    def torn(*_: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            again.set()
        raise RuntimeError("torn")

    monkeypatch.setattr("agents.api.projection.GroupReader", torn)
    monkeypatch.setattr("agents.api.projection._FIRST_PAUSE", 0.01)
    running = asyncio.create_task(projection.run())
    async with asyncio.timeout(BOUND):
        await again.wait()
    assert "torn" in projection.standing
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def pending(database: Database, *names: str) -> None:
    for name in names:
        await database.pool.execute(
            "INSERT INTO orders (id, way, customer, country, total_cents, lines)"
            " VALUES ($1, 'placed', 'ada', 'SE', 1990, '[]')",
            name,
        )


async def statuses(database: Database) -> dict[str, tuple[str, str]]:
    rows = await database.pool.fetch("SELECT id, status, reason FROM orders")
    return {row["id"]: (row["status"], row["reason"]) for row in rows}


async def test_orders_get_the_status_that_they_ended_with(database: Database, projection: Projection) -> None:
    await pending(database, "o-1", "o-2", "o-3")
    await projection.take([confirmed("o-1"), cancelled("o-2")])
    assert await statuses(database) == {
        "o-1": ("confirmed", ""),
        "o-2": ("cancelled", "out_of_stock"),
        "o-3": ("pending", ""),
    }


@pytest.mark.promise("api-status")
async def test_an_order_that_has_ended_never_goes_back(database: Database, projection: Projection) -> None:
    await pending(database, "o-1", "o-2")
    await projection.take([confirmed("o-1"), cancelled("o-1"), cancelled("o-2")])
    await projection.take([cancelled("o-1", "late"), confirmed("o-2")])
    assert await statuses(database) == {"o-1": ("confirmed", ""), "o-2": ("cancelled", "out_of_stock")}


@pytest.mark.promise("api-status")
async def test_events_that_come_again_change_nothing(database: Database, projection: Projection) -> None:
    await pending(database, "o-1")
    await projection.take([confirmed("o-1")])
    before = await database.pool.fetchval("SELECT updated_at FROM orders")
    await projection.take([confirmed("o-1"), confirmed("o-1")])
    assert await database.pool.fetchval("SELECT updated_at FROM orders") == before
    assert await database.pool.fetchval("SELECT count(*) FROM consumer_inbox") == 1


async def test_an_unknown_order_gets_its_row_at_its_end(database: Database, projection: Projection) -> None:
    hostile = told(OrderConfirmed(order=order("o-\0", customer="a\0b")), "e-1")
    await projection.take([confirmed("o-1"), hostile])
    assert await statuses(database) == {"o-1": ("confirmed", ""), "o-\ufffd": ("confirmed", "")}
    assert await database.pool.fetchval("SELECT way FROM orders WHERE id = 'o-1'") == "unknown"


async def test_a_cancellation_that_came_too_late_is_shown(database: Database, projection: Projection) -> None:
    await pending(database, "o-1", "o-2")
    await database.pool.execute("UPDATE orders SET cancellation = 'requested' WHERE id = 'o-1'")
    refused = [told(CancellationRefused(order=order(name)), f"{name}:refused") for name in ("o-1", "o-2")]
    await projection.take(refused)
    rows = await database.pool.fetch("SELECT id, cancellation FROM orders ORDER BY id")
    assert [tuple(row) for row in rows] == [("o-1", "refused"), ("o-2", "none")]
