"""Addresses of the overview, and of workers."""

from __future__ import annotations

import msgspec

from streams.control.api.web_request import Read, WebRequest
from streams.control.base.answers import WorkerAnswer
from streams.control.base.others import other_workers
from streams.control.base.view import Problem
from streams.control.overview.flow import PART_PATH
from streams.control.overview.hours import HOURS_PATH
from streams.control.overview.overview import overview as worker_at_a_glance


async def overview(request: WebRequest) -> msgspec.Struct:
    """The overview of all workers."""
    return await request.overviews.answer()


async def _part(request: WebRequest) -> msgspec.Struct:
    return request.overviews.part()


async def _over_time(request: WebRequest) -> msgspec.Struct:
    """The last hour; another worker gets the counts of this one alone."""
    overviews = request.overviews
    return await overviews.hours() if request.asked_by is None else overviews.counts()


async def worker(request: WebRequest) -> msgspec.Struct:
    """This worker."""
    return worker_at_a_glance(request.view)


async def of_worker(request: WebRequest) -> msgspec.Struct:
    """A worker, by its address without the scheme or by its slot. Raises Problem."""
    wanted, view = request.names["worker"], request.view
    if wanted in (str(view.slot), _name(view.url)):
        return worker_at_a_glance(view)
    known, others = other_workers(view), request.others(WorkerAnswer)
    if wanted.isdigit():
        for each in (await others.each(view, "/api/worker")).values():
            if isinstance(each, WorkerAnswer) and str(each.slot) == wanted:
                return each
    for url in known:
        if wanted == _name(url):
            return await others.ask(url, "/api/worker", {})
    names = ", ".join(sorted({_name(view.url), *map(_name, known)}))
    raise Problem(404, "no_worker", f"there is no worker {wanted!r}: there are {names}")


def _name(url: str) -> str:
    return url.partition("://")[2].rstrip("/")


ROUTES = (
    Read("/api/overview", overview),
    Read(PART_PATH, _part),
    Read(HOURS_PATH, _over_time),
    Read("/api/worker", worker),
    Read("/api/workers/{worker}", of_worker),
)
