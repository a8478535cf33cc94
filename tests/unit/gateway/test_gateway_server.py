"""The gateway's HTTP, spoken to directly."""

import json
import sqlite3

import pytest
from aiohttp.test_utils import TestClient, TestServer

from agents.gateway.ledger import Ledger
from agents.gateway.server import GatewayServer


@pytest.fixture
async def http(tmp_path):
    app = GatewayServer(tmp_path / "ledger.sqlite").application()
    async with TestClient(TestServer(app, handler_cancellation=True)) as client:
        yield client


async def ask(http, method, path, body=None):
    async with http.request(method, path, data=body) as response:
        assert response.content_type == "application/json"
        return response.status, json.loads(await response.read())


def charge_body(operation="a", cents=5, card="tok_accepted"):
    return json.dumps({"operation": operation, "cents": cents, "card": card})


async def test_only_a_new_charge_is_created(http):
    status, first = await ask(http, "POST", "/charges", charge_body())
    assert status == 201
    assert await ask(http, "POST", "/charges", charge_body()) == (200, first)
    assert await ask(http, "GET", "/operations/a") == (200, first)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, ""),
        (400, "{"),
        (400, b"\xff\xfe"),
        (400, '{"operation": "a\\ud800", "cents": 5, "card": "tok_accepted"}'),
        (422, "[]"),
        (422, "{}"),
        (422, charge_body(operation="")),
        (422, charge_body(operation="..")),
        (422, charge_body(operation="a\nb")),
        (422, charge_body(operation="a\n")),
        (422, charge_body(operation="a" * 201)),
        (422, charge_body(cents=0)),
        (422, charge_body(cents=-5)),
        (422, charge_body(cents=2.5)),
        (422, charge_body(cents=True)),
        (422, charge_body(cents="5")),
        (422, charge_body(cents=10**30)),
        (422, charge_body(card="4111111111111111")),
        (422, charge_body(card="tok_accepted\n")),
        (422, charge_body()[:-1] + ', "tip": 1}'),
        (413, charge_body(operation="a" * 20_000)),
    ],
)
async def test_a_senseless_request_is_refused_with_a_reason(http, status, body):
    answered, answer = await ask(http, "POST", "/charges", body)
    assert (answered, answer["error"]) == (status, "invalid")
    assert answer["detail"]
    assert (await ask(http, "GET", "/ledger"))[1]["rows"] == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("DELETE", "/charges", 405), ("POST", "/health", 405)],
)
async def test_an_unknown_path_or_method_is_refused_in_json(http, method, path, status):
    assert (await ask(http, method, path))[0] == status


async def test_the_ledger_is_read_by_the_page(http):
    for name in "abc":
        await ask(http, "POST", "/charges", charge_body(name))
    await ask(http, "POST", "/refunds", json.dumps({"operation": "d", "charge_operation": "b"}))
    _, first = await ask(http, "GET", "/ledger?limit=3")
    assert [row["operation"] for row in first["rows"]] == ["a", "b", "c"]
    _, second = await ask(http, "GET", f"/ledger?limit=3&after={first['next']}")
    assert [row["kind"] for row in second["rows"]] == ["refund"]
    assert second["next"] is None
    assert second["totals"] == first["totals"]
    times = {"captured": 3, "declined": 0, "refunded": 1}
    assert second["totals"] == times | {"captured_cents": 15, "declined_cents": 0, "refunded_cents": 5}


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=x", "limit=", "after=-1", "after=9" + "9" * 30]
)
async def test_a_page_that_cannot_be_is_refused_with_what_could(http, query):
    status, answer = await ask(http, "GET", f"/ledger?{query}")
    assert status == 422
    assert "expected a number from" in answer["detail"]


async def test_a_failing_ledger_is_no_answer(http, monkeypatch):
    def full(self, asks):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "apply", full)
        status, answer = await ask(http, "POST", "/charges", charge_body())
    assert (status, answer["error"]) == (503, "ledger_unavailable")
    assert "disk is full" in answer["detail"]
    assert (await ask(http, "POST", "/charges", charge_body()))[0] == 201
