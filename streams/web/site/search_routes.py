"""Addresses of the search, of a key's timeline, and of the database edge."""

from __future__ import annotations

import msgspec

from streams.web.history.holdings import KEY_PATH, held
from streams.web.history.search import look_into, only_thing
from streams.web.history.timeline_answers import KeyAnswer
from streams.web.site.web_request import Read, WebRequest


async def _found(request: WebRequest) -> msgspec.Struct:
    return await look_into(request.view, request.query, **request.asker(KeyAnswer))


async def _of_key(request: WebRequest) -> msgspec.Struct:
    return await held(request.view, request.query.get("key", ""), **request.asker(KeyAnswer))


async def _database(request: WebRequest) -> msgspec.Struct:
    return await request.view.database()


ROUTES = (
    # Goes straight to the one thing that it finds.
    Read("/search", _found, "timeline.html", onward=only_thing, unasked="search.html"),
    Read("/timeline", _found, "timeline.html", json=None, unasked="search.html"),
    Read(KEY_PATH.removeprefix("/api"), _of_key),
    Read("/outbox", _database, "outbox.html"),
)
