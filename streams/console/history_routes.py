"""Addresses of the search, of a key's timeline, of topics and their records, and of the database edge."""

from __future__ import annotations

from asyncio import gather

import msgspec

from streams.console.web_request import Read, WebRequest, asks
from streams.control.base.view import Kept, Problem
from streams.control.history.holdings import KEY_PATH, held
from streams.control.history.key_prefixes import KEYS_PATH, KeysAnswer, list_keys, named_keys
from streams.control.history.search import LEAST_NAMED, look_into, only_thing
from streams.control.history.timeline_answers import KeyAnswer
from streams.control.history.topic_answers import PageAnswer
from streams.control.history.topics import browse_topic, known_topics, list_topics, show_record
from streams.control.overview.flow_answers import HandlerShown, TopicShown
from streams.errors import ClusterUnavailable

_TOPICS = "topics"


async def _of_key(request: WebRequest) -> msgspec.Struct:
    if "key" not in request.query:
        raise Problem(400, "no_key", f"which key? ask for {KEY_PATH}?key=...")
    return await held(request.view, request.query["key"], **request.asker(KeyAnswer))


async def _database(request: WebRequest) -> msgspec.Struct:
    return await request.view.database()


async def _topics(request: WebRequest) -> msgspec.Struct:
    try:
        answer = await list_topics(request.view)
    except ClusterUnavailable as error:
        return known_topics(request.view.application, request.kept.get(_TOPICS), str(error))
    request.kept[_TOPICS] = Kept(request.view.now(), answer)
    return answer


async def _topic(request: WebRequest) -> msgspec.Struct:
    return await browse_topic(request.view, request.names["topic"], request.query)


class TopicPage(PageAnswer, frozen=True, kw_only=True):
    """A page of records, with who sends and takes them now. None and nothing of what is no message."""

    flow: TopicShown | None
    handlers: list[HandlerShown]


async def topic_page(request: WebRequest) -> TopicPage:
    """The page. Raises Problem."""
    name = request.names["topic"]
    found, overview = await gather(
        browse_topic(request.view, name, request.query), request.overviews.answer()
    )
    handlers = (each for service in overview.services for each in service.handlers if name in each.topics)
    return TopicPage(
        **{field: getattr(found, field) for field in found.__struct_fields__},
        flow=next((each for each in overview.topics if each.topic == name), None),
        handlers=list(handlers),
    )


async def _record(request: WebRequest) -> msgspec.Struct:
    names = request.names
    return await show_record(request.view, names["topic"], names["partition"], names["offset"])


async def _found(request: WebRequest) -> msgspec.Struct:
    """Everything known of a text; where that is nothing, the keys that begin with it."""
    found = await look_into(request.view, request.query, **request.asker(KeyAnswer))
    there = found.entries or found.outbox or (found.held is not None and found.held.things)
    text = request.query.get("q", "").strip()
    if there or len(text) < LEAST_NAMED:
        return found
    keys = await list_keys(request.view, {"prefix": text}, **request.asker(KeysAnswer))
    return msgspec.structs.replace(found, named=[*found.named, *named_keys(keys)])


ROUTES = (
    # Goes straight to the one thing that it finds.
    Read("/search", _found, "timeline.html", onward=only_thing, unasked="search.html"),
    Read("/timeline", _found, "timeline.html", json=None, unasked="search.html"),
    Read(KEY_PATH.removeprefix("/api"), _of_key),
    Read(KEYS_PATH.removeprefix("/api"), asks(list_keys, KeysAnswer)),
    Read("/outbox", _database, "outbox.html"),
    Read("/topics", _topics, "topics.html"),
    Read("/topics/{topic}", _topic),
    Read("/topics/{topic}", topic_page, "topic.html", json=None),
    Read("/topics/{topic}/{partition}/{offset}", _record, "record.html"),
)
