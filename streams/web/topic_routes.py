"""Addresses of topics and of their records. All are only read."""

from __future__ import annotations

import msgspec

from streams.web.asked import Asked, Read
from streams.web.topics import browse_topic, list_topics, show_record


async def _topics(asked: Asked) -> msgspec.Struct:
    return await list_topics(asked.view)


async def _topic(asked: Asked) -> msgspec.Struct:
    return await browse_topic(asked.view, asked.names["topic"], asked.query)


async def _record(asked: Asked) -> msgspec.Struct:
    names = asked.names
    return await show_record(asked.view, names["topic"], names["partition"], names["offset"])


ROUTES = (
    Read("/topics", _topics, "topics.html"),
    Read("/topics/{topic}", _topic, "topic.html"),
    Read("/topics/{topic}/{partition}/{offset}", _record, "record.html"),
)
