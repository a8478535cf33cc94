"""Every address of a worker's pages.

A page is one line here, or in the routes of its part:

    Read("/tables", answer, "tables.html")

answers at `/tables` with that template, and at `/api/tables` with JSON. `answer` is called with what is
asked, and returns a struct; the template has it as `answer`, with `query`, `path` and `csrf`.
"""

from __future__ import annotations

import msgspec
from litestar.response.base import ASGIResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streams.console import (
    handler_routes,
    history_routes,
    letter_routes,
    login,
    overview_routes,
    saga_routes,
    table_routes,
    waiting_routes,
)
from streams.console.pages import json_response
from streams.console.site import Route, Site, static
from streams.console.web_request import Read, WebRequest
from streams.control.base.access import Access
from streams.control.base.answers import HealthAnswer
from streams.control.base.view import WorkerView
from streams.control.overview.overview import overview, readiness


async def _worker(request: WebRequest) -> msgspec.Struct:
    return overview(request.view)


ROUTES: tuple[Route, ...] = (
    *overview_routes.ROUTES,
    Read("/worker", _worker, "worker.html"),
    *table_routes.ROUTES,
    *saga_routes.ROUTES,
    *letter_routes.ROUTES,
    *handler_routes.ROUTES,
    *waiting_routes.ROUTES,
    *history_routes.ROUTES,
    *login.ROUTES,
)


def site(view: WorkerView, access: Access = Access()) -> Site:
    """All pages of a worker."""

    async def scraped(_: WebRequest) -> ASGIResponse:
        return ASGIResponse(body=made.metrics.scrape(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    plain = {
        "/health/live": _live,
        "/health/ready": _ready,
        "/metrics": scraped,
        "/live/overview": overview_routes.live,
        "/static/{name}": static,
    }
    made = Site(view, access, routes=ROUTES, plain=plain)
    return made


async def _live(_: WebRequest) -> ASGIResponse:
    return json_response(HealthAnswer(status="live"))  # that there is an answer is the answer


async def _ready(request: WebRequest) -> ASGIResponse:
    health = readiness(request.view)
    return json_response(health, status=503 if health.reasons else 200)
