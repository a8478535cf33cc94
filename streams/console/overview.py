"""The overview with its live parts, and the pages of workers."""

from __future__ import annotations

from collections.abc import Mapping

from streams.console.live import Live
from streams.console.page import Page
from streams.console.pages import render
from streams.control.api import overview
from streams.control.api.overviews import Overviews
from streams.control.base.view import WorkerView

#: What changes on the page, each by the name of its event, with its template.
LIVE_PARTS = {
    part: f"overview_{part}.html"
    for part in ("state", "warnings", "tiles", "flow", "workers", "handlers", "topics")
}


def live_overview(view: WorkerView, overviews: Overviews) -> Live:
    """The changing parts of the overview, for browsers that stay connected."""

    async def parts() -> Mapping[str, str]:
        answer = await overviews.answer()
        now = view.now()
        return {name: render(template, answer=answer, now=now) for name, template in LIVE_PARTS.items()}

    return Live(parts)


ROUTES = (
    Page("/", overview.overview, "overview.html"),
    Page("/worker", overview.worker, "worker.html"),
    Page("/workers/{worker}", overview.of_worker, "worker.html"),
)
