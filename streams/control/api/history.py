"""Addresses of the search, of a key's timeline, of topics and their records, and of the database edge."""

from __future__ import annotations

import msgspec

from streams.control.api.web_request import Read, WebRequest, asks
from streams.control.base.view import Kept, Problem
from streams.control.history.holdings import KEY_PATH, held
from streams.control.history.key_prefixes import KEYS_PATH, KeysAnswer, list_keys, named_keys
from streams.control.history.search import LEAST_NAMED, look_into
from streams.control.history.timeline_answers import KeyAnswer
from streams.control.history.topics import browse_topic, known_topics, list_topics, show_record
from streams.errors import ClusterUnavailable

_TOPICS = "topics"


async def _of_key(request: WebRequest) -> msgspec.Struct:
    if "key" not in request.query:
        raise Problem(400, "no_key", f"which key? ask for {KEY_PATH}?key=...")
    return await held(request.view, request.query["key"], request.others(KeyAnswer))


async def database(request: WebRequest) -> msgspec.Struct:
    """The outbox, the inboxes and the queues in PostgreSQL."""
    return await request.view.database()


async def topics(request: WebRequest) -> msgspec.Struct:
    """All topics of the application; as they were last while Kafka does not answer."""
    try:
        answer = await list_topics(request.view)
    except ClusterUnavailable as error:
        return known_topics(request.view.application, request.kept.get(_TOPICS), str(error))
    request.kept[_TOPICS] = Kept(request.view.now(), answer)
    return answer


async def _topic(request: WebRequest) -> msgspec.Struct:
    return await browse_topic(request.view, request.names["topic"], request.query)


async def record(request: WebRequest) -> msgspec.Struct:
    """One record in full. Raises Problem."""
    names = request.names
    return await show_record(request.view, names["topic"], names["partition"], names["offset"])


async def found(request: WebRequest) -> msgspec.Struct:
    """Everything known of a text; where that is nothing, the keys that begin with it."""
    found = await look_into(request.view, request.query, request.others(KeyAnswer))
    there = found.entries or found.outbox or (found.held is not None and found.held.things)
    text = request.query.get("q", "").strip()
    if there or len(text) < LEAST_NAMED:
        return found
    keys = await list_keys(request.view, {"prefix": text}, request.others(KeysAnswer))
    return msgspec.structs.replace(found, named=[*found.named, *named_keys(keys)])


ROUTES = (
    Read("/api/search", found),
    Read(KEY_PATH, _of_key),
    Read(KEYS_PATH, asks(list_keys, KeysAnswer)),
    Read("/api/outbox", database),
    Read("/api/topics", topics),
    Read("/api/topics/{topic}", _topic),
    Read("/api/topics/{topic}/{partition}/{offset}", record),
)
