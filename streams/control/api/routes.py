"""Every address of a worker but those of its console.

An answer is one line in the routes of its part:

    Read("/api/tables", answer)

`answer` is called with what is asked, and returns a struct.
"""

from __future__ import annotations

from litestar.response.base import ASGIResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streams.control.api import handlers, history, letters, overview, sagas, tables, waiting
from streams.control.api.site import Console, Route, Site
from streams.control.api.web_request import WebRequest
from streams.control.api.writing import json_response
from streams.control.base.access import Access
from streams.control.base.answers import HealthAnswer
from streams.control.base.view import WorkerView
from streams.control.overview.overview import readiness

ROUTES: tuple[Route, ...] = (
    *overview.ROUTES,
    *tables.ROUTES,
    *sagas.ROUTES,
    *letters.ROUTES,
    *handlers.ROUTES,
    *waiting.ROUTES,
    *history.ROUTES,
)


def site(view: WorkerView, access: Access = Access(), console: Console | None = None) -> Site:
    """All that a worker answers; pages where it has a console."""

    async def scraped(_: WebRequest) -> ASGIResponse:
        return ASGIResponse(body=made.metrics.scrape(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    plain = {"/health/live": _live, "/health/ready": _ready, "/metrics": scraped}
    made = Site(view, access, routes=ROUTES, plain=plain, console=console)
    return made


async def _live(_: WebRequest) -> ASGIResponse:
    return json_response(HealthAnswer(status="live"))  # that there is an answer is the answer


async def _ready(request: WebRequest) -> ASGIResponse:
    health = readiness(request.view)
    return json_response(health, status=503 if health.reasons else 200)
