"""What the orders API is built of: problem answers, request ids, limits, a page of its description."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from litestar import Litestar, get, post
from litestar.openapi import OpenAPIConfig
from litestar.params import JSONBody, QueryParameter
from structlog.testing import capture_logs

from agents.api.bodies import StrictJson
from agents.api.openapi_page import PlainPage
from agents.api.rate_limit import RateLimit
from streams.errors import TransientError
from streams.http import Requests, problem_handlers


class Gift(msgspec.Struct, forbid_unknown_fields=True):
    """Something to give."""

    name: str
    units: Annotated[int, msgspec.Meta(ge=1)]


@post("/gifts", dto=StrictJson[Gift], return_dto=None)
async def give(data: JSONBody[Gift]) -> Gift:
    """Give something."""
    return data


@get("/gifts")
async def gifts(most: Annotated[int, QueryParameter(ge=1)]) -> int:
    return most


@get("/broken")
async def broken() -> None:
    raise RuntimeError("a secret of ours")


@get("/away")
async def away() -> None:
    raise TransientError("broker b1 at 10.0.0.1 does not answer")


pytestmark = pytest.mark.usefixtures("quiet")


def client_of(app: Any, limit: RateLimit, **options: Any) -> httpx.AsyncClient:
    app = Litestar(
        app, exception_handlers=problem_handlers(), before_request=limit, logging_config=None, **options
    )
    transport = httpx.ASGITransport(Requests(app), raise_app_exceptions=False)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://api")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    docs = OpenAPIConfig(title="<Gifts>", version="1", path="/docs", render_plugins=[PlainPage(path="/")])
    routes = [give, gifts, broken, away]
    async with client_of(routes, RateLimit(0), request_max_body_size=1000, openapi_config=docs) as client:
        yield client


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("status", "ask"),
    [
        (404, lambda c: c.get("/nothing")),
        (405, lambda c: c.put("/gifts")),
        (415, lambda c: c.post("/gifts", content=b"{}", headers={"content-type": "text/plain"})),
        (415, lambda c: c.post("/gifts", content=b"{}")),
        (400, lambda c: c.post("/gifts", content=b"{", headers=JSON)),
        (400, lambda c: c.post("/gifts", content=b'{"name": "\xff"}', headers=JSON)),
        (422, lambda c: c.post("/gifts", content=b"", headers=JSON)),
        (422, lambda c: c.post("/gifts", json={"name": "cup", "units": "3"})),
        (422, lambda c: c.post("/gifts", json={"name": "cup", "units": 0})),
        (422, lambda c: c.post("/gifts", json={"name": "cup", "units": 1, "colour": "red"})),
        (422, lambda c: c.get("/gifts", params={"most": 0})),
        (422, lambda c: c.get("/gifts")),
        (413, lambda c: c.post("/gifts", json={"name": "c" * 2000, "units": 1})),
        (500, lambda c: c.get("/broken")),
        (503, lambda c: c.get("/away")),
    ],
)
async def test_every_error_is_a_problem_answer_with_the_requests_id(
    client: httpx.AsyncClient, status: int, ask: Callable[[httpx.AsyncClient], Any]
) -> None:
    answer = await ask(client)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert said["status"] == status
    assert {"type", "title", "detail"} <= said.keys()
    assert said["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in answer.text
    assert "10.0.0.1" not in answer.text
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_problem_says_where_the_body_is_wrong(client: httpx.AsyncClient) -> None:
    answer = await client.post("/gifts", json={"name": "cup", "units": 0})
    assert answer.json()["errors"] == [{"detail": "Expected `int` >= 1", "pointer": "$.units"}]


async def test_a_clients_request_id_is_taken_over_and_logged(client: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        answer = await client.get("/nothing", headers={"X-Request-ID": "shop-17"})
    assert answer.headers["x-request-id"] == "shop-17"
    assert [(e["path"], e["status"]) for e in logs if e["event"] == "http_request"] == [("/nothing", 404)]


@pytest.mark.parametrize("bad", ["", "a b", "a" * 129, 'a"b'])
async def test_what_is_no_request_id_is_replaced(client: httpx.AsyncClient, bad: str) -> None:
    answer = await client.get("/gifts", params={"most": 1}, headers={"X-Request-ID": bad})
    assert answer.headers["x-request-id"] not in ("", bad)


async def test_the_page_of_the_description_needs_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert answer.status_code == 200
    assert "POST /gifts" in answer.text
    assert "&lt;Gifts&gt;" in answer.text
    assert 'href="#Gift"' in answer.text
    assert "http://" not in answer.text.replace("http://api", "")
    assert "https://" not in answer.text
    assert "<script" not in answer.text
    document = (await client.get("/docs/openapi.json")).json()
    assert document["components"]["schemas"]["Gift"]["properties"]["units"]["minimum"] == 1


def test_a_client_has_its_rate_of_requests_and_a_burst() -> None:
    now = 0.0
    limit = RateLimit(2, burst=3, clock=lambda: now)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.take("b") == 0  # another client's
    now = 0.5
    assert limit.take("a") == 0
    assert limit.take("a") == 0.5
    now = 100.0
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_addresses_are_forgotten_so_that_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.http.limits._MOST", 2)
    limit = RateLimit(1, clock=lambda: 0.0)
    for client in ("a", "b", "c", "d"):
        limit.take(client)
    assert list(limit._buckets._buckets) == ["c", "d"]


async def test_too_many_requests_say_when_to_come_again() -> None:
    async with client_of([gifts], RateLimit(0.5)) as client:
        assert (await client.get("/gifts?most=1")).status_code == 200
        answer = await client.get("/gifts?most=1")
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "2"
