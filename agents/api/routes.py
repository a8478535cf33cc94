"""The orders API over HTTP: what each path answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Litestar, Request, Response, delete, get, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency, Provide
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from prometheus_client import CollectorRegistry

from agents.api.beginning import begin
from agents.api.bodies import StrictJson
from agents.api.openapi_page import PlainPage, describe_structs
from agents.api.orders import Orders, cancellation_id
from agents.api.placing import KeyInFlight, KeyReused, OrderPlacing
from agents.api.rate_limit import RateLimit
from agents.api.traced import publishing
from agents.api.wire import END, OrderPage, OrderView, PlaceOrder, Status
from agents.cancellation import RequestCancellation
from agents.settings import OrdersWay
from streams.errors import TooLarge
from streams.http import (
    Health,
    Report,
    RequestRules,
    metrics_handler,
    problem,
    problem_body,
    problem_handlers,
)
from streams.postgres.errors import StatementRefused

AnyRequest = Request[Any, Any, Any]

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
#: Of a caller, as the proxy in front has it: no control characters.
_CALLER = re.compile(r"[\x20-\x7e\x80-\xff]{1,255}")
_MOST_OF_A_PAGE = 1000
_PROBLEM = "application/problem+json"


_LOCATION = ResponseHeader(name="Location", description="Where the order is.", documentation_only=True)


class Problem(msgspec.Struct, kw_only=True):
    """Why a request was not done (RFC 9457). Some have further members, such as `errors` or `order`."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str = ""


def _answers(kind: Any, *statuses: int) -> dict[int, ResponseSpec]:
    """202 with a value, where there is one that the handler's type does not tell, and problems."""
    taken = {202: ResponseSpec(kind, generate_examples=False, description="It is taken.")} if kind else {}
    return taken | {
        status: ResponseSpec(Problem, generate_examples=False, media_type=_PROBLEM, description=_WHY[status])
        for status in (400, *statuses, 429, 503)
    }


_WHY = {
    400: "The body is not JSON, or something appears twice.",
    403: "The header of the authenticated caller is missing.",
    404: "There is no such order.",
    408: "The body did not come in time.",
    409: "It contradicts what is there; the type says how.",
    413: "The body is too large.",
    415: "The body is of another media type.",
    422: "The body, a parameter or a header is not as described.",
    429: "This client makes too many requests.",
    503: "PostgreSQL does not answer in time, or refuses. Send it again, with the same key.",
}


@post(
    "/orders",
    dto=StrictJson[PlaceOrder],
    return_dto=None,
    status_code=202,
    responses=_answers(OrderView, 403, 408, 409, 413, 415, 422),
    response_headers=[_LOCATION],
)
async def place_order(
    request: AnyRequest,
    data: JSONBody[PlaceOrder],
    idempotency_key: Annotated[
        str,
        HeaderParameter(
            name="Idempotency-Key",
            description="Names the request: sent again with the same body, it gets the same answer.",
            pattern=f"^[!-~]{{1,255}}{END}",
        ),
    ],
    placing: NamedDependency[OrderPlacing],
    orders_way: NamedDependency[OrdersWay],
    caller: NamedDependency[str],
) -> Response[bytes]:
    """Place an order. The answer means that it is stored; the order's status has its end."""
    if not _KEY.fullmatch(idempotency_key):
        raise problem(422, "invalid", "Idempotency-Key: give 1 to 255 visible ASCII characters")
    # A key has no space: two callers never have one name together.
    name = f"{caller} {idempotency_key}" if caller else idempotency_key
    placed = begin(data, name, orders_way=orders_way, now=datetime.now(UTC))
    if why := placed.message.order.refusal():
        raise problem(422, "invalid", f"no service takes this order: {why}", reason=why)
    try:
        with publishing(request, placed.message.TOPIC, placed.message_id) as handed:
            answer = await placing.place(placed._replace(trace=handed.traceparent))
            handed.done = answer.status == 202 and not answer.replayed
    except KeyInFlight:
        raise problem(
            409, "key-in-flight", "a request with this key is under way", headers={"Retry-After": "1"}
        ) from None
    except KeyReused:
        raise problem(409, "key-reused", "this key was used for another request: take a new one") from None
    except TooLarge as error:
        raise problem(413, "request-entity-too-large", str(error)) from error
    headers = {"Location": f"/orders/{quote(answer.order_id, safe='')}"}
    if answer.replayed:
        headers["Idempotency-Replayed"] = "true"
    media_type = "application/json" if answer.status == 202 else _PROBLEM
    return Response(answer.body, status_code=answer.status, media_type=media_type, headers=headers)


@get("/orders/{order_id:str}", responses=_answers(None, 404))
async def get_order(order_id: FromPath[str], orders: NamedDependency[Orders]) -> OrderView:
    """An order and its status."""
    order = await orders.find(order_id)
    if order is None:
        raise _no_order(order_id)
    return order


@get("/orders", responses=_answers(None, 422))
async def list_orders(
    orders: NamedDependency[Orders],
    status: Annotated[Status | None, QueryParameter(description="Only orders of this status.")] = None,
    after: Annotated[
        str | None, QueryParameter(description="`next` of the page before.", pattern=f"^[0-9]{{1,18}}{END}")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=_MOST_OF_A_PAGE, description="Orders at most.")] = 100,
) -> OrderPage:
    """Orders, newest first, a page at a time."""
    return await orders.page(status, int(after) if after else None, limit)


@delete(
    "/orders/{order_id:str}",
    status_code=202,
    responses=_answers(OrderView, 404, 409),
)
async def cancel_order(
    request: AnyRequest, order_id: FromPath[str], orders: NamedDependency[Orders]
) -> Response[OrderView]:
    """Ask for an order's cancellation. It is undone if it is not past its pivot; its status will tell."""
    with publishing(request, RequestCancellation.TOPIC, cancellation_id(order_id)) as handed:
        found, order = await orders.call_off(order_id, handed.traceparent)
        handed.done = found == "requested"
    if order is None:
        raise _no_order(order_id)
    if found == "too_late":
        raise problem(
            409,
            "too-late",
            f"the order is {order.status}, its cancellation {order.cancellation}",
            order_status=order.status,
        )
    return Response(order, status_code=202, headers={"Location": f"/orders/{quote(order_id, safe='')}"})


_DOWN = ResponseSpec(Report, generate_examples=False, description="It is DOWN.")


@get("/health", responses={503: _DOWN}, opt={"unlimited": True})
async def get_health(health: NamedDependency[Health]) -> Response[Report]:
    """Whether this works: OK, DEGRADED or DOWN, with reasons."""
    report = await health.report()
    return Response(report, status_code=503 if report.status == "DOWN" else 200)


def _caller_of(header: str) -> Callable[[AnyRequest], str]:
    """Who has sent a request: what the header says, which a proxy sets; empty without a header."""

    def caller(request: AnyRequest) -> str:
        if not header:
            return ""
        name = request.headers.get(header, "").strip()
        if not _CALLER.fullmatch(name):
            raise problem(
                403, "no-caller", f"the header {header} names no caller: come through the proxy that sets it"
            )
        return name

    return caller


def _no_order(order_id: str) -> Exception:
    return problem(404, "no-such-order", f"there is no order {order_id}")


def order_exists(order_id: str) -> bytes:
    """The answer to a request for an order whose id is taken."""
    return problem_body(problem(409, "order-exists", f"there is an order {order_id} already"))


def create_api(
    placing: OrderPlacing,
    orders: Orders,
    health: Health,
    registry: CollectorRegistry,
    *,
    orders_way: OrdersWay,
    max_body: int,
    limit: RateLimit,
    caller_header: str = "",
) -> RequestRules:
    """The application, on what it needs. `caller_header` names the authenticated caller; empty: none."""

    def given(value: Any) -> Provide:
        give: Callable[[], Any] = lambda: value  # noqa: E731
        return Provide(give, sync_to_thread=False)

    async def limited(request: AnyRequest) -> None:
        if not request.route_handler.opt.get("unlimited"):
            await limit(request)

    app = Litestar(
        [place_order, get_order, list_orders, cancel_order, get_health, metrics_handler(registry)],
        dependencies={
            "placing": given(placing),
            "orders": given(orders),
            "health": given(health),
            "orders_way": given(orders_way),
            "caller": Provide(_caller_of(caller_header), sync_to_thread=False),
        },
        before_request=limited,
        exception_handlers=problem_handlers([StatementRefused]),
        request_max_body_size=max_body,
        openapi_config=OpenAPIConfig(
            title="Orders",
            version="1",
            description="Place orders, read their status, cancel them.",
            path="/docs",
            render_plugins=[PlainPage(path="/")],
        ),
        logging_config=None,
    )
    describe_structs(app, [PlaceOrder, OrderView, OrderPage, Problem, Report])
    return RequestRules(app, ["idempotency-key", *filter(None, [caller_header])])
