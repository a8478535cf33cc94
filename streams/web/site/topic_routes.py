"""Addresses of topics and of their records. All are only read."""

from __future__ import annotations

import msgspec

from streams.errors import ClusterUnavailable
from streams.web.base.view import Kept
from streams.web.history.topics import browse_topic, known_topics, list_topics, show_record
from streams.web.site.web_request import Read, WebRequest

_TOPICS = "topics"


async def _topics(asked: WebRequest) -> msgspec.Struct:
    try:
        answer = await list_topics(asked.view)
    except ClusterUnavailable as error:
        return known_topics(asked.view.application, asked.kept.get(_TOPICS), str(error))
    asked.kept[_TOPICS] = Kept(asked.view.now(), answer)
    return answer


async def _topic(asked: WebRequest) -> msgspec.Struct:
    return await browse_topic(asked.view, asked.names["topic"], asked.query)


async def _record(asked: WebRequest) -> msgspec.Struct:
    names = asked.names
    return await show_record(asked.view, names["topic"], names["partition"], names["offset"])


ROUTES = (
    Read("/topics", _topics, "topics.html"),
    Read("/topics/{topic}", _topic, "topic.html"),
    Read("/topics/{topic}/{partition}/{offset}", _record, "record.html"),
)
