"""The pages of the search, of a key's timeline, of topics and their records, and of the database edge."""

from __future__ import annotations

from asyncio import gather

from streams.console.page import Page
from streams.control.api.history import database, found, record, topics
from streams.control.api.web_request import WebRequest
from streams.control.history.search import only_thing
from streams.control.history.topic_answers import PageAnswer
from streams.control.history.topics import browse_topic
from streams.control.overview.flow_answers import HandlerShown, TopicShown


class TopicPage(PageAnswer, frozen=True, kw_only=True):
    """A page of records, with who sends and takes them now. None and nothing of what is no message."""

    flow: TopicShown | None
    handlers: list[HandlerShown]


async def topic_page(request: WebRequest) -> TopicPage:
    """The page. Raises Problem."""
    name = request.names["topic"]
    shown, overview = await gather(
        browse_topic(request.view, name, request.query), request.overviews.answer()
    )
    handlers = (each for service in overview.services for each in service.handlers if name in each.topics)
    return TopicPage(
        **{field: getattr(shown, field) for field in shown.__struct_fields__},
        flow=next((each for each in overview.topics if each.topic == name), None),
        handlers=list(handlers),
    )


ROUTES = (
    # Goes straight to the one thing that it finds.
    Page("/search", found, "timeline.html", onward=only_thing, unasked="search.html"),
    Page("/timeline", found, "timeline.html", unasked="search.html"),
    Page("/outbox", database, "outbox.html"),
    Page("/topics", topics, "topics.html"),
    Page("/topics/{topic}", topic_page, "topic.html"),
    Page("/topics/{topic}/{partition}/{offset}", record, "record.html"),
)
