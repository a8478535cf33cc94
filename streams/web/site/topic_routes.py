"""Addresses of topics and of their records. All are only read."""

from __future__ import annotations

import msgspec

from streams.errors import ClusterUnavailable
from streams.web.base.view import Kept
from streams.web.history.topics import browse_topic, known_topics, list_topics, show_record
from streams.web.site.web_request import Read, WebRequest

_TOPICS = "topics"


async def _topics(request: WebRequest) -> msgspec.Struct:
    try:
        answer = await list_topics(request.view)
    except ClusterUnavailable as error:
        return known_topics(request.view.application, request.kept.get(_TOPICS), str(error))
    request.kept[_TOPICS] = Kept(request.view.now(), answer)
    return answer


async def _topic(request: WebRequest) -> msgspec.Struct:
    return await browse_topic(request.view, request.names["topic"], request.query)


async def _record(request: WebRequest) -> msgspec.Struct:
    names = request.names
    return await show_record(request.view, names["topic"], names["partition"], names["offset"])


ROUTES = (
    Read("/topics", _topics, "topics.html"),
    Read("/topics/{topic}", _topic, "topic.html"),
    Read("/topics/{topic}/{partition}/{offset}", _record, "record.html"),
)
