"""Requests that no handler should have to think about, and what each address answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from litestar import Litestar, Response, delete, get, post
from litestar.openapi import OpenAPIConfig
from litestar.params import FromPath, JSONBody, QueryParameter
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from streams.http import PlainPage, RequestRules, Requests, StrictJson, metrics_handler, problem_handlers

PROBLEM = "application/problem+json"
JSON = ("content-type", "application/json")


class Gift(msgspec.Struct):
    name: str


@post("/gifts", dto=StrictJson[Gift], return_dto=None)
async def give(data: JSONBody[Gift]) -> Gift:
    return data


@get("/gifts")
async def gifts(after: Annotated[str, QueryParameter(required=False)] = "") -> str:
    return after


@get("/gifts/{name:str}")
async def gift(name: FromPath[str]) -> str:
    return name


@delete("/gifts/{name:str}", status_code=202)
async def take_back(name: FromPath[str]) -> Response[str]:
    return Response(name)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = Litestar(
        [give, gifts, gift, take_back, metrics_handler(CollectorRegistry())],
        exception_handlers=problem_handlers(),
        request_max_body_size=1000,
        logging_config=None,
        openapi_config=OpenAPIConfig("Gifts", "1", path="/docs", render_plugins=[PlainPage(path="/")]),
    )
    ruled: Any = Requests(RequestRules(app, ["Idempotency-Key"]))
    transport = httpx.ASGITransport(ruled, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/gifts", "GET, HEAD, OPTIONS, POST"),
        ("/gifts/cup", "DELETE, GET, HEAD, OPTIONS"),
        ("/metrics", "GET, HEAD, OPTIONS"),
        ("/docs", "GET, HEAD, OPTIONS"),
    ],
)
async def test_allow_names_all_methods_of_an_address(
    client: httpx.AsyncClient, path: str, methods: str
) -> None:
    for method in ("PUT", "PATCH", "TRACE", "BREW"):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)
        assert answer.headers["content-type"] == PROBLEM
    answer = await client.options(path)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")


@pytest.mark.parametrize(
    "path", ["/gifts?after=7", "/gifts/cup", "/metrics", "/docs", "/nothing", "/gifts/%00"]
)
async def test_head_is_answered_as_get_without_the_body(client: httpx.AsyncClient, path: str) -> None:
    got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize(
    ("status", "path"),
    [
        (404, "/gifts/%00"),
        (404, "/gifts/a%00b"),
        (404, "/%00"),
        (400, "/gifts/%ff"),
        (400, "/gifts/%c3%28"),
        (400, "/gifts/%ed%a0%80"),  # half of a surrogate
        (400, "/gifts?after=1&after=2"),
        (400, "/gifts?after=1&%61fter=1"),
        (400, "/gifts?after=&after"),
        (404, "/docs/nothing"),
        (404, "/nothing"),
    ],
)
async def test_an_address_that_means_nothing_is_a_problem(
    client: httpx.AsyncClient, status: int, path: str
) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "header",
    [
        ("Idempotency-Key", "a"),
        ("idempotency-key", "b"),
        ("Content-Type", "application/json"),
        ("Content-Type", "text/plain"),
        ("Authorization", "a"),
    ],
)
async def test_a_header_that_decides_may_be_there_once(
    client: httpx.AsyncClient, header: tuple[str, str]
) -> None:
    once = [JSON, ("Idempotency-Key", "a"), ("authorization", "a")]
    assert (await client.post("/gifts", content=b'{"name": "cup"}', headers=once)).status_code == 201
    answer = await client.post("/gifts", content=b'{"name": "cup"}', headers=[*once, header])
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:problem:ambiguous")
    assert header[0].lower() in answer.json()["detail"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (201, {"content-type": 'Application/JSON; Charset="UTF-8"'}),
        (201, {"content-type": "application/json;"}),
        (201, {"content-type": "application/json", "content-encoding": "identity"}),
        (415, {"content-type": "application/json; charset=utf-16"}),
        (415, {"content-type": "application/json; charset=latin-1"}),
        (415, {"content-type": "application/json; charset=utf-8; charset=utf-16"}),
        (415, {"content-type": "application/json; charset"}),
        (415, {"content-type": "application/json", "content-encoding": "gzip"}),
        (415, {"content-type": "application/json", "content-encoding": "identity, br"}),
        (415, {"content-type": "multipart/form-data"}),
        (415, {"content-type": ""}),
    ],
)
async def test_a_body_in_another_coding_is_not_read(
    client: httpx.AsyncClient, status: int, headers: dict[str, str]
) -> None:
    answer = await client.post("/gifts", content=b'{"name": "cup"}', headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (422, b'{"name": ' + b"[" * 500),
        (400, b'{"name": "cup", "more": ' + b"[" * 900),
        (422, b'{"name": ' + b"9" * 900 + b"}"),
        (422, b'{"name": 1e999}'),
        (400, b'{"name": NaN}'),
        (400, b'{"name": "\\ud800"}'),
        (400, b'\xef\xbb\xbf{"name": "cup"}'),
        (400, '{"name": "cup"}'.encode("utf-16")),
        (422, b"null"),
        (422, b"[]"),
        (422, b""),
    ],
)
async def test_a_body_that_is_no_gift_is_a_problem(
    client: httpx.AsyncClient, status: int, body: bytes
) -> None:
    answer = await client.post("/gifts", content=body, headers=[JSON])
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text


async def test_a_body_in_chunks_has_the_same_limit(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(100):
            yield b"c" * 100
        yield b'"}'

    assert (await client.post("/gifts", content=chunks(), headers=[JSON])).status_code == 413


async def test_metrics_say_their_charset_once(client: httpx.AsyncClient) -> None:
    assert (await client.get("/metrics")).headers["content-type"].count("charset") == 1
