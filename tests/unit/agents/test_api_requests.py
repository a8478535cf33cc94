"""Requests that no handler should have to think about, and what each address answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from litestar import Litestar, Response, delete, get, post
from litestar.openapi import OpenAPIConfig
from litestar.params import FromPath, JSONBody, QueryParameter
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from agents.api.bodies import StrictJson
from agents.api.openapi_page import PlainPage
from streams.http import RequestRules, Requests, metrics_handler, problem_handlers

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


pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.promise("api-any-request"),
]


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
async def test_allow_names_all_methods_of_address(client: httpx.AsyncClient, path: str, methods: str) -> None:
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
async def test_a_meaningless_address_is_a_problem(client: httpx.AsyncClient, status: int, path: str) -> None:
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
async def test_a_deciding_header_may_come_once(client: httpx.AsyncClient, header: tuple[str, str]) -> None:
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
        (422, b'{"name": "cup", "name": "cup"}'),
        (422, b'{"name": "cup", "n\\u0061me": "can"}'),
        (422, b'{"name": "cup", "more": [{"a": 1, "a": 2}]}'),
        (400, b'{"name": NaN}'),
        (400, b'{"name": "\\ud800"}'),
        (400, b'\xef\xbb\xbf{"name": "cup"}'),
        (400, '{"name": "cup"}'.encode("utf-16")),
        (422, b"null"),
        (422, b"[]"),
        (422, b""),
    ],
)
async def test_body_that_is_no_gift_is_a_problem(client: httpx.AsyncClient, status: int, body: bytes) -> None:
    answer = await client.post("/gifts", content=body, headers=[JSON])
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text


async def test_what_is_there_once_may_be_anything(client: httpx.AsyncClient) -> None:
    body = b'{"name": "cup", "more": [' + b"9" * 900 + b", {}, {}, 1e999]}"
    assert (await client.post("/gifts", content=body, headers=[JSON])).status_code == 201


async def test_a_body_in_chunks_has_the_same_limit(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(100):
            yield b"c" * 100
        yield b'"}'

    assert (await client.post("/gifts", content=chunks(), headers=[JSON])).status_code == 413


async def asked(app: Any, *received: Any, length: bytes = b"99") -> list[Any]:
    """What an application sends when these are all that comes of a body."""
    sent: list[Any] = []
    coming = iter(received)

    async def receive() -> Any:
        message = next(coming, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"host", b"api")]
    scope = {"type": "http", "method": "POST", "path": "/gifts", "raw_path": b"/gifts", "query_string": b""}
    await app({**scope, "headers": headers, "state": {}, "client": ("a", 1)}, receive, send)
    return sent


async def test_a_body_that_does_not_come_is_no_failure() -> None:
    app = Litestar([give], exception_handlers=problem_handlers(), logging_config=None)
    part = {"type": "http.request", "body": b'{"name": "c', "more_body": True}
    with capture_logs() as logs:
        gone = await asked(RequestRules(app), part, {"type": "http.disconnect"})
        late = await asked(RequestRules(app, patience=0.01), part)
        never = await asked(RequestRules(app, patience=0.01))
    assert [sent[0]["status"] for sent in (gone, late, never)] == [400, 408, 408]
    assert (b"connection", b"close") in late[0]["headers"]
    assert "request_failed" not in {each["event"] for each in logs}


async def test_a_body_with_two_lengths_is_refused(client: httpx.AsyncClient) -> None:
    lengths = {"content-length": "15", "transfer-encoding": "chunked"}
    answer = await client.post("/gifts", content=b'{"name": "cup"}', headers=dict([JSON]) | lengths)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:problem:ambiguous")


async def test_metrics_say_their_charset_once(client: httpx.AsyncClient) -> None:
    assert (await client.get("/metrics")).headers["content-type"].count("charset") == 1
