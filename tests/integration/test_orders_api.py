"""The orders API on a real PostgreSQL: what is answered, and what is in the tables then."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agents.api.orders import Orders
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from agents.settings import OrdersWay
from schemas import latest
from streams.model.codecs import Schemas, avro
from streams.postgres import Database, Outbox
from tests.orders_shop import CUP, Shop, shop_on
from tests.postgres import until
from tests.waiting import eventually_async

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
async def shop(orders_url: str) -> AsyncIterator[Shop]:
    async with shop_on(orders_url) as shop:
        yield shop


async def until_placed(shop: Shop) -> None:
    """Ask again and again: in time, or on a busy machine later."""

    async def is_placed() -> bool:
        status = (await shop.place("k-1")).status_code
        assert status in (202, 409, 503)
        return status == 202

    await eventually_async(is_placed, "the order is placed")


async def has_one_order(shop: Shop) -> None:
    """With its message."""
    assert [len(await shop.rows(table)) for table in ("orders", "outbox")] == [1, 1]


async def test_an_order_is_taken_with_row_message_and_place(shop: Shop) -> None:
    answer = await shop.place("k-1", {"traceparent": TRACE})
    assert answer.status_code == 202
    order_id = answer.json()["order_id"]
    assert answer.headers["location"] == f"/orders/{order_id}"
    (message,) = await shop.rows("outbox")
    assert message["topic"] == OrderPlaced.TOPIC
    assert message["aggregate_id"] == order_id
    assert message["traceparent"] == TRACE
    sent = avro(latest, Schemas())(OrderPlaced, OrderPlaced.TOPIC).decode(message["payload"], None)
    assert (sent.order.order_id, sent.order.total_cents) == (order_id, 1990)
    found = await shop.client.get(answer.headers["location"])
    assert found.status_code == 200
    assert found.json() == answer.json()
    assert found.json()["lines"] == CUP["lines"]
    assert "card" not in found.text


@pytest.mark.promise("api-idempotent")
async def test_the_same_key_and_body_get_the_same_answer(shop: Shop) -> None:
    first = await shop.place("k-1")
    again = await shop.place("k-1")
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    await has_one_order(shop)


@pytest.mark.promise("api-idempotent")
async def test_the_same_key_with_another_body_is_refused(shop: Shop) -> None:
    await shop.place("k-1")
    answer = await shop.place("k-1", total_cents=5)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:problem:key-reused")
    assert len(await shop.rows("orders")) == 1


async def test_a_key_is_required(shop: Shop) -> None:
    answer = await shop.client.post("/orders", json=CUP)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await shop.place("key with spaces")).status_code == 422


async def test_two_keys_in_one_request_are_refused(shop: Shop) -> None:
    keys = [("Idempotency-Key", "k-1"), ("Idempotency-Key", "k-2")]
    answer = await shop.client.post("/orders", json=CUP, headers=keys)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:problem:ambiguous")
    assert await shop.rows("orders") == []


CALLER = "X-Caller"


@pytest.mark.promise("api-callers")
async def test_each_caller_has_keys_of_its_own(orders_url: str) -> None:
    async with shop_on(orders_url, caller_header=CALLER) as shop:
        ada = await shop.place("k-1", {CALLER: "ada"})
        eve = await shop.place("k-1", {CALLER: "eve"}, total_cents=5)
        assert (ada.status_code, eve.status_code) == (202, 202)
        assert ada.json()["order_id"] != eve.json()["order_id"]
        again = await shop.place("k-1", {CALLER: "ada"})
        assert (again.content, again.headers["idempotency-replayed"]) == (ada.content, "true")
        reused = await shop.place("k-1", {CALLER: "ada"}, total_cents=5)
        assert (reused.status_code, reused.json()["type"]) == (409, "urn:problem:key-reused")
        names = {row["key"] for row in await shop.rows("idempotency_keys")}
        assert names == {"ada k-1", "eve k-1"}
        # A space in a caller makes it nobody else.
        assert (await shop.place("k-1", {CALLER: "ada k-1"})).headers.get("idempotency-replayed") is None


@pytest.mark.promise("api-callers")
async def test_without_one_caller_no_order_is_placed(orders_url: str) -> None:
    async with shop_on(orders_url, caller_header=CALLER) as shop:
        for headers in ({}, {CALLER: ""}, {CALLER: "  "}, {CALLER: "x" * 256}, {CALLER: "a\tb"}):
            answer = await shop.place("k-1", headers)
            assert (answer.status_code, answer.json()["type"]) == (403, "urn:problem:no-caller"), headers
        two = [("Idempotency-Key", "k-1"), (CALLER, "ada"), (CALLER.lower(), "eve")]
        assert (await shop.client.post("/orders", json=CUP, headers=two)).status_code == 400
        assert await shop.rows("orders") == []
        assert (await shop.client.get("/orders")).status_code == 200


@pytest.mark.parametrize("order_id", ["%00", "o-1%00", "%ff", "%ed%a0%80", "a" * 5000, "%F0%9F%98%80", ".."])
async def test_an_id_that_is_none_is_no_error_of_ours(shop: Shop, order_id: str) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        assert (await shop.client.request(method, f"/orders/{order_id}")).status_code in (400, 404)


@pytest.mark.promise("api-idempotent")
async def test_of_many_with_one_key_one_places_the_order(orders_url: str) -> None:
    async with shop_on(orders_url) as one, shop_on(orders_url) as other:
        answers = await asyncio.gather(*(each.place("k-1") for each in (one, other) * 20))
        statuses = {answer.status_code for answer in answers}
        assert statuses <= {202, 409}
        taken = {answer.content for answer in answers if answer.status_code == 202}
        assert len(taken) == 1
        for refused in (answer for answer in answers if answer.status_code == 409):
            assert refused.json()["type"] == "urn:problem:key-in-flight"
            assert int(refused.headers["retry-after"]) >= 1
        await has_one_order(one)


async def test_a_key_is_refused_while_in_flight_elsewhere(shop: Shop) -> None:
    async with shop.database.acquire() as other:
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(hashtextextended('k-1', 0))")
            answer = await shop.place("k-1")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:problem:key-in-flight")
    assert (await shop.place("k-1")).status_code == 202


async def test_an_expired_key_is_new_and_a_cleanup_forgets_it(orders_url: str) -> None:
    async with shop_on(orders_url, keep=0.0) as shop:
        first, again = await shop.place("k-1"), await shop.place("k-1", total_cents=5)
        assert first.json()["order_id"] != again.json()["order_id"]
        orders = Orders(shop.database, Outbox(avro(latest, Schemas()), source="x"), patience=5.0)
        assert await orders.forget_keys() == 1
        assert await shop.rows("idempotency_keys") == []


async def test_a_clients_order_id_is_taken_once(shop: Shop) -> None:
    assert (await shop.place("k-1", order_id="o-17")).headers["location"] == "/orders/o-17"
    refused = await shop.place("k-2", order_id="o-17", total_cents=5)
    again = await shop.place("k-2", order_id="o-17", total_cents=5)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:problem:order-exists")
    assert (again.status_code, again.content) == (409, refused.content)
    assert again.headers["content-type"] == "application/problem+json"
    assert len(await shop.rows("outbox")) == 1


@pytest.mark.promise("api-idempotent")
async def test_requests_for_one_order_id_at_once_make_one_order(shop: Shop) -> None:
    answers = await asyncio.gather(*(shop.place(f"k-{n}", order_id="o-17") for n in range(10)))
    assert sorted(answer.status_code for answer in answers) == [202, *[409] * 9]
    await has_one_order(shop)


class BreaksBefore(Outbox):
    """Fails where the order's row is written and its message is not."""

    broke = 0

    async def _insert(self, connection: Any, rows: Sequence[Any]) -> None:
        assert await connection.fetchval("SELECT count(*) FROM orders") > 0
        type(self).broke += 1
        raise RuntimeError("broken on purpose")


@pytest.mark.promise("api-atomic")
async def test_a_failure_between_the_row_and_its_message_leaves_neither(orders_url: str) -> None:
    async with shop_on(orders_url, outbox=BreaksBefore) as shop:
        answer = await shop.place("k-1")
        assert answer.status_code == 500
        assert BreaksBefore.broke == 1
        for table in ("orders", "outbox", "idempotency_keys"):
            assert await shop.rows(table) == []
    async with shop_on(orders_url) as shop:
        assert (await shop.place("k-1")).status_code == 202


class BreaksOne(Outbox):
    """Does not take one of the messages."""

    async def _insert(self, connection: Any, rows: Sequence[Any]) -> None:
        if any(row.aggregate_id == "o-bad" for row in rows):
            raise RuntimeError("broken on purpose")
        await super()._insert(connection, list(rows))


@pytest.mark.promise("api-patience")
async def test_a_request_that_fails_does_not_fail_those_beside_it(orders_url: str) -> None:
    async with shop_on(orders_url, outbox=BreaksOne) as shop:
        names = ["o-1", "o-bad", "o-2", "o-3"]
        answers = await asyncio.gather(*(shop.place(f"k-{name}", order_id=name) for name in names))
        assert [answer.status_code for answer in answers] == [202, 500, 202, 202]
        assert {row["aggregate_id"] for row in await shop.rows("outbox")} == {"o-1", "o-2", "o-3"}


@pytest.mark.promise("api-patience")
async def test_without_a_free_connection_a_request_is_a_503(orders_url: str) -> None:
    async with shop_on(orders_url, most=2, patience=0.4) as shop:
        async with shop.database.acquire(), shop.database.acquire():
            asked = (shop.place("k-1"), shop.place("k-2"), *map(shop.client.get, ("/orders/o-1", "/orders")))
            answers = await asyncio.gather(*asked)
        for answer in answers:
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1
        await until_placed(shop)


@pytest.mark.promise("api-patience")
async def test_a_statement_that_hangs_is_cut(orders_url: str) -> None:
    async with shop_on(orders_url, patience=0.4) as shop, Database(orders_url) as other:
        async with other.transaction() as locked:
            await locked.execute("LOCK TABLE orders")
            assert (await shop.place("k-1")).status_code == 503
        await until_placed(shop)
        assert len(await shop.rows("orders")) == 1


@pytest.mark.promise("api-patience")
async def test_a_lost_connection_is_a_503(orders_url: str) -> None:
    async with shop_on(orders_url) as shop, Database(orders_url, name="other") as other:
        async with other.transaction() as locked:
            await locked.execute("LOCK TABLE orders")
            placing = asyncio.create_task(shop.place("k-1"))
            cut = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            await until(other, cut)
            answer = await placing
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:problem:unavailable")
        assert (await shop.place("k-1")).status_code == 202
        assert len(await shop.rows("orders")) == 1


async def test_pages_go_from_the_newest_to_the_oldest(shop: Shop) -> None:
    for n in range(7):
        await shop.place(f"k-{n}", order_id=f"o-{n}")
    await shop.database.pool.execute(
        "UPDATE orders SET status = 'confirmed' WHERE id IN ('o-1', 'o-4', 'o-6')"
    )
    assert await ids(shop, limit=3) == [["o-6", "o-5", "o-4"], ["o-3", "o-2", "o-1"], ["o-0"]]
    assert await ids(shop, limit=2, status="confirmed") == [["o-6", "o-4"], ["o-1"]]
    assert await ids(shop, limit=2, status="cancelled") == [[]]
    for bad in (
        {"after": "x"},
        {"after": "1\n"},
        {"after": "\uff11"},
        {"status": "lost"},
        {"limit": 0},
        {"limit": 1001},
        {"after": "9" * 30},
    ):
        assert (await shop.client.get("/orders", params=bad)).status_code == 422, bad


async def ids(shop: Shop, **params: Any) -> list[list[str]]:
    pages = []
    while True:
        page = (await shop.client.get("/orders", params=params)).json()
        pages.append([order["order_id"] for order in page["orders"]])
        if page["after"] is None:
            return pages
        params["after"] = page["after"]


@pytest.mark.promise("api-to-kafka")
async def test_cancellation_is_asked_for_once_and_in_time(shop: Shop) -> None:
    assert (await shop.client.delete("/orders/o-1")).status_code == 404
    await shop.place("k-1", order_id="o-1")
    for _ in range(2):
        answer = await shop.client.delete("/orders/o-1", headers={"traceparent": TRACE})
        assert answer.status_code == 202
        assert answer.json()["cancellation"] == "requested"
    begins, command = await shop.rows("outbox")
    assert command["topic"] == "orders.commands.request-cancellation"
    assert (command["aggregate_type"], command["aggregate_id"]) == (begins["aggregate_type"], "o-1")
    assert command["traceparent"] == TRACE
    await shop.database.pool.execute("UPDATE orders SET status = 'confirmed'")
    late = await shop.client.delete("/orders/o-1")
    assert (late.status_code, late.json()["order_status"]) == (409, "confirmed")
    assert len(await shop.rows("outbox")) == 2


@pytest.mark.parametrize("way", list(OrdersWay))
async def test_an_order_goes_one_way(orders_url: str, way: OrdersWay) -> None:
    async with shop_on(orders_url, way=way) as shop:
        await asyncio.gather(*(shop.place(f"k-{n}", order_id=f"o-{n}") for n in range(20)))
        topics = {row["aggregate_id"]: row["topic"] for row in await shop.rows("outbox")}
        assert len(topics) == 20
        expected = {
            OrdersWay.PLACED: {OrderPlaced.TOPIC},
            OrdersWay.SUBMITTED: {OrderSubmitted.TOPIC},
            OrdersWay.BOTH: {OrderPlaced.TOPIC, OrderSubmitted.TOPIC},
        }
        assert set(topics.values()) == expected[way]
        assert (await shop.place("again", order_id="o-1")).status_code == 409


@pytest.mark.parametrize(
    "bad",
    [
        {"lines": []}, {"lines": [{"sku": "a\0", "units": 1}]}, {"customer": "a\0b"}, {"order_id": "a/b"},
        {"order_id": "a\n"}, {"total_cents": -1}, {"total_cents": 10**13},
    ],
)  # fmt: skip
async def test_what_is_no_order_never_reaches_the_database(shop: Shop, bad: Any) -> None:
    assert (await shop.place("k-1", **bad)).status_code == 422
    assert await shop.rows("idempotency_keys") == []
