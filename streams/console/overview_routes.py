"""Addresses of the overview, of its live parts, and of the pages of other workers."""

from __future__ import annotations

import asyncio

import msgspec
from litestar.response.base import ASGIResponse
from litestar.response.streaming import ASGIStreamingResponse

from streams.console.web_request import Read, WebRequest
from streams.control.base.answers import WorkerAnswer
from streams.control.base.view import Problem
from streams.control.overview.flow import PART_PATH
from streams.control.overview.hours import HOURS_PATH
from streams.control.overview.overview import overview


async def _overview(request: WebRequest) -> msgspec.Struct:
    return await request.overviews.answer()


async def _part(request: WebRequest) -> msgspec.Struct:
    return request.overviews.part()


async def _over_time(request: WebRequest) -> msgspec.Struct:
    """The last hour; another worker gets the counts of this one alone."""
    overviews = request.overviews
    return await overviews.hours() if request.asked_by is None else overviews.counts()


async def _of_worker(request: WebRequest) -> msgspec.Struct:
    """The page of a worker, by its address without the scheme or by its slot. Raises Problem."""
    wanted, view = request.names["worker"], request.view
    if wanted in (str(view.slot), _name(view.url)):
        return overview(view)
    known = {*view.assignment.owners.values(), *view.assignment.members}
    others = sorted(url for url in known if url and url != view.url)
    ask = request.asker(WorkerAnswer)["ask"]
    if wanted.isdigit():
        found = await asyncio.gather(*(ask(url, "/api/worker", {}) for url in others), return_exceptions=True)
        for each in found:
            if isinstance(each, WorkerAnswer) and str(each.slot) == wanted:
                return each
    for url in others:
        if wanted == _name(url):
            answer: WorkerAnswer = await ask(url, "/api/worker", {})
            return answer
    names = ", ".join(sorted({_name(view.url), *map(_name, others)}))
    raise Problem(404, "no_worker", f"there is no worker {wanted!r}: there are {names}")


def _name(url: str) -> str:
    return url.partition("://")[2].rstrip("/")


async def live(request: WebRequest) -> ASGIResponse:
    """The changing parts of the overview, for as long as a browser is connected."""
    return ASGIStreamingResponse(
        iterator=request.overviews.live.listen(),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},  # a proxy that gathers events would hold them back
    )


ROUTES = (
    Read("/", _overview, "overview.html", json="/api/overview"),
    Read(PART_PATH.removeprefix("/api"), _part),
    Read(HOURS_PATH.removeprefix("/api"), _over_time),
    Read("/workers/{worker}", _of_worker, "worker.html"),
)
