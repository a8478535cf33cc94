"""Addresses of what happened to a key: one box for all of it, and its timeline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from aiohttp import web

from streams.web.holdings import KEY_PATH, held
from streams.web.letter_routes import Answered, AsJson, Session, View
from streams.web.owner import asker
from streams.web.search import look_into, only_thing
from streams.web.timeline_answers import KeyAnswer, TimelineAnswer

#: Writes a page of a template for a request, with what the template needs.
AsPage = Callable[..., web.Response]


def search_routes(
    view_key: View, session_key: Session, as_json: AsJson, as_page: AsPage
) -> list[web.RouteDef]:
    """Every address of searches: `/search` goes straight to the one thing that it finds."""

    async def answer(request: web.Request) -> TimelineAnswer:
        view = request.app[view_key]
        asking = asker(request, view, request.app[session_key], KeyAnswer)
        return await look_into(view, request.query, **asking)

    async def of_key(request: web.Request) -> msgspec.Struct:
        view = request.app[view_key]
        asking = asker(request, view, request.app[session_key], KeyAnswer)
        return await held(view, request.query.get("key", ""), **asking)

    async def page(request: web.Request, *, goes_on: bool) -> web.Response:
        if not request.query.get("q", "").strip():
            return as_page("search.html", request)
        found = await answer(request)
        if goes_on and (there := only_thing(found)):
            return web.Response(status=303, headers={"Location": there})
        return as_page("timeline.html", request, answer=found)

    as_answer: Answered = answer
    return [
        web.get("/search", partial(page, goes_on=True)),
        web.get("/timeline", partial(page, goes_on=False)),
        web.get("/api/search", partial(as_json, as_answer)),
        web.get(KEY_PATH, partial(as_json, of_key)),
    ]
