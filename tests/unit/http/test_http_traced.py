"""A request is a span of its caller's trace, and what it causes goes on from there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from litestar import Litestar, Request, get, post
from litestar.params import FromPath
from structlog.contextvars import get_contextvars

from streams.http import Requests, Traced, publishing
from streams.tracing.span import Kind, Span
from streams.tracing.tracer import Tracer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"


@post("/orders/{name:str}")
async def order(request: Request[Any, Any, Any], name: FromPath[str]) -> dict[str, Any]:
    with publishing(request, "orders.placed", f"{name}:begins") as handed:
        if name == "broken":
            raise RuntimeError("no database")
        handed.done = name != "known"
    return {"traceparent": handed.traceparent, **get_contextvars()}


@get("/health")
async def health() -> str:
    return "OK"


@asynccontextmanager
async def api(tracer: Tracer | None) -> AsyncIterator[httpx.AsyncClient]:
    app: Any = Requests(Litestar([order, health], openapi_config=None, logging_config=None))
    if tracer is not None:
        app = Traced(app, tracer, service="shop")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


async def asked(path: str, header: str | None, *, ratio: float = 1.0) -> tuple[httpx.Response, list[Span]]:
    spans: list[Span] = []
    async with api(Tracer(spans.append, ratio=ratio)) as client:
        answer = await client.post(path, headers={} if header is None else {"traceparent": header})
    return answer, spans


async def test_a_request_goes_on_in_its_callers_trace_and_its_message_in_its_own() -> None:
    answer, (published, request) = await asked("/orders/a", SAMPLED)
    assert (request.kind, request.name, request.service) == (Kind.SERVER, "POST /orders/{name}", "shop")
    assert request.parent is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, CALLER)
    assert request.attributes == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/orders/a",
        "http.route": "/orders/{name}",
        "http.response.status_code": 201,
    }
    assert (published.kind, published.name) == (Kind.PRODUCER, "publish orders.placed")
    assert published.parent == request.context
    assert published.attributes["messaging.message.id"] == "a:begins"
    told = answer.json()
    assert told["traceparent"] == f"00-{TRACE}-{published.context.span_id:016x}-01"
    assert (told["trace_id"], told["span_id"]) == (TRACE, f"{request.context.span_id:016x}")


async def test_a_request_that_begins_a_trace_is_recorded_or_says_that_it_is_not() -> None:
    answer, spans = await asked("/orders/a", None)
    assert [span.parent is None for span in spans] == [False, True]
    assert answer.json()["traceparent"].endswith("-01")
    answer, spans = await asked("/orders/a", None, ratio=0.0)
    assert spans == []
    assert answer.json()["traceparent"].endswith("-00")


@pytest.mark.parametrize("traced", [True, False])
async def test_what_the_caller_does_not_record_goes_along_as_it_is(traced: bool) -> None:
    spans: list[Span] = []
    async with api(Tracer(spans.append, ratio=1.0) if traced else None) as client:
        answer = await client.post("/orders/a", headers={"traceparent": UNSAMPLED})
    assert (spans, answer.json()["traceparent"]) == ([], UNSAMPLED)


async def test_without_traces_a_callers_trace_is_not_cut() -> None:
    async with api(None) as client:
        answer = await client.post("/orders/a", headers={"traceparent": SAMPLED})
        junk = await client.post("/orders/a", headers={"traceparent": "junk"})
    assert (answer.json()["traceparent"], junk.json()["traceparent"]) == (SAMPLED, "")


async def test_a_message_that_was_not_handed_over_has_no_span() -> None:
    _, spans = await asked("/orders/known", SAMPLED)
    assert [span.kind for span in spans] == [Kind.SERVER]


async def test_a_request_that_breaks_says_so() -> None:
    answer, (request,) = await asked("/orders/broken", SAMPLED)
    assert answer.status_code == request.attributes["http.response.status_code"] == 500
    assert (request.error, request.attributes["error.type"]) == ("answered 500", "500")


async def test_probes_are_no_spans() -> None:
    spans: list[Span] = []
    async with api(Tracer(spans.append, ratio=1.0)) as client:
        assert (await client.get("/health", headers={"traceparent": SAMPLED})).text == "OK"
    assert spans == []


async def test_of_many_requests_the_ratio_is_recorded() -> None:
    spans: list[Span] = []
    async with api(Tracer(spans.append, ratio=0.5)) as client:
        for i in range(100):
            await client.post(f"/orders/{i}")
    assert 25 <= len([span for span in spans if span.kind is Kind.SERVER]) <= 75
