"""The pages of a worker, as its server takes them.

A page is one line in the routes of its part:

    Page("/tables", answer, "tables.html")

The template has what `answer` returns as `answer`, with `query`, `path` and `csrf`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

from litestar.response.base import ASGIResponse
from litestar.response.streaming import ASGIStreamingResponse

from streams.console import handlers, history, letters, login, overview, sagas, tables, waiting, writing
from streams.console.live import Live
from streams.console.page import Form, Page
from streams.console.pages import asset_response
from streams.control.api.overviews import Overviews
from streams.control.api.site import Address, Refusal
from streams.control.api.web_request import WebRequest
from streams.control.base.view import Problem, WorkerView

ROUTES: tuple[Page | Form, ...] = (
    *overview.ROUTES,
    *tables.ROUTES,
    *sagas.ROUTES,
    *letters.ROUTES,
    *handlers.ROUTES,
    *waiting.ROUTES,
    *history.ROUTES,
    *login.ROUTES,
)


class Pages:
    """The console of one worker: see `streams.control.api.site.Console`."""

    def __init__(self) -> None:
        self._live: Live | None = None

    @property
    def addresses(self) -> Iterable[Address]:
        """Pages, their forms, the files that they load, and the live parts of the overview."""
        for route in ROUTES:
            match route:
                case Page():
                    yield Address("GET", route.path, partial(writing.shown, route))
                case Form(path, act):
                    yield Address("POST", path, partial(writing.acted, act))
        yield Address("GET", "/live/overview", self._look_on)
        yield Address("GET", "/static/{name}", _static)

    @asynccontextmanager
    async def serving(self, view: WorkerView, overviews: Overviews) -> AsyncIterator[None]:
        """Show this worker; at the end the live pages are released."""
        self._live = overview.live_overview(view, overviews)
        try:
            yield
        finally:
            self.end_live()

    def end_live(self) -> None:
        """End the streams of live pages."""
        if self._live is not None:
            self._live.end()

    def refused(self, refusal: Refusal) -> ASGIResponse:
        """A problem as a page."""
        return writing.refused(refusal)

    async def _look_on(self, _: WebRequest) -> ASGIResponse:
        """The changing parts of the overview, for as long as a browser is connected."""
        if self._live is None:
            raise Problem(503, "not_now", "the worker is starting or stopping")
        return ASGIStreamingResponse(
            iterator=self._live.listen(),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},  # a proxy that gathers events would hold them back
        )


async def _static(request: WebRequest) -> ASGIResponse:
    return asset_response(request.names["name"])
