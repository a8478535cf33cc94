"""A request is a span of its caller's trace, and what it causes goes on from there."""

from typing import Any

import httpx
import pytest
from litestar import Litestar, Request, get, post
from litestar.params import FromPath
from structlog.contextvars import get_contextvars

from agents.api.traced import Traced, publishing, traceparent
from streams.http import RequestRules, Requests
from streams.tracing.span import Span, SpanKind
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


Spans = list[Span]


async def asked(
    *paths: str, header: str | None = SAMPLED, ratio: float = 1.0, traced: bool = True
) -> tuple[httpx.Response, Spans]:
    spans: Spans = []
    app: Any = Requests(RequestRules(Litestar([order, health], openapi_config=None, logging_config=None)))
    if traced:
        app = Traced(app, Tracer(spans.append, ratio=ratio), service="shop")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {} if header is None else {"traceparent": header}
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        for path in paths:
            answer = await client.request("GET" if path == "/health" else "POST", path)
    return answer, spans


async def test_a_request_goes_on_in_its_callers_trace() -> None:
    answer, (published, request) = await asked("/orders/a")
    assert (request.kind, request.name, request.service) == (SpanKind.SERVER, "POST /orders/{name}", "shop")
    assert request.parent is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, CALLER)
    assert request.attributes == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/orders/a",
        "http.route": "/orders/{name}",
        "http.response.status_code": 201,
    }
    assert (published.kind, published.name) == (SpanKind.PRODUCER, "publish orders.placed")
    assert published.parent == request.context
    assert published.attributes["messaging.message.id"] == "a:begins"
    told = answer.json()
    assert told["traceparent"] == f"00-{TRACE}-{published.context.span_id:016x}-01"
    assert (told["trace_id"], told["span_id"]) == (TRACE, f"{request.context.span_id:016x}")


async def test_a_trace_that_begins_here_is_recorded_or_not() -> None:
    answer, spans = await asked("/orders/a", header=None)
    assert [span.parent is None for span in spans] == [False, True]
    assert answer.json()["traceparent"].endswith("-01")
    answer, spans = await asked("/orders/a", header=None, ratio=0.0)
    assert spans == []
    assert answer.json()["traceparent"].endswith("-00")


@pytest.mark.parametrize("traced", [True, False])
async def test_what_the_caller_does_not_record_goes_along(traced: bool) -> None:
    answer, spans = await asked("/orders/a", header=UNSAMPLED, traced=traced)
    assert (spans, answer.json()["traceparent"]) == ([], UNSAMPLED)


async def test_without_traces_a_callers_trace_is_not_cut() -> None:
    for header, expected in ((SAMPLED, SAMPLED), ("junk", "")):
        answer, _ = await asked("/orders/a", header=header, traced=False)
        assert answer.json()["traceparent"] == expected


async def test_a_message_that_was_not_handed_over_has_no_span() -> None:
    _, spans = await asked("/orders/known")
    assert [span.kind for span in spans] == [SpanKind.SERVER]


async def test_a_request_that_breaks_says_so() -> None:
    answer, (request,) = await asked("/orders/broken")
    assert answer.status_code == request.attributes["http.response.status_code"] == 500
    assert (request.error, request.attributes["error.type"]) == ("answered 500", "500")


async def test_probes_are_no_spans() -> None:
    answer, spans = await asked("/health")
    assert (answer.text, spans) == ("OK", [])


async def test_of_many_requests_the_ratio_is_recorded() -> None:
    _, spans = await asked(*(f"/orders/{i}" for i in range(100)), header=None, ratio=0.5)
    assert 25 <= len([span for span in spans if span.kind is SpanKind.SERVER]) <= 75


@pytest.mark.parametrize(
    ("header", "good"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n", False),
        ("hello", False),
        (None, False),
    ],
)
def test_a_traceparent_is_taken_over_if_it_is_one(header: str | None, good: bool) -> None:
    assert traceparent(header) == (header if good else None)
