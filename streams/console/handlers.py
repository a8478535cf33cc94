"""The pages of handlers, and their forms."""

from __future__ import annotations

from asyncio import gather
from urllib.parse import quote, urlencode

import msgspec

from streams.console.page import Form, Page, from_form
from streams.control.api.web_request import WebRequest
from streams.control.handlers.handler_answers import AskHandler, HandlersAnswer
from streams.control.handlers.handlers import ask_handler, check_known, list_handlers
from streams.control.overview.flow_answers import HandlerShown
from streams.control.overview.hours import HourLine
from streams.control.waiting.waiting import list_waiting
from streams.control.waiting.waiting_answers import WaitingAnswer, WaitingPage

#: Of what waits for a handler, so many are on its page.
MOST_OLDEST = 5
_LINES = {
    "Attempts per minute": "attempts",
    "Waiting messages": "waiting",
    "Dead letters": "letters",
}


class HandlerPage(HandlersAnswer, frozen=True, kw_only=True):
    """A handler with its numbers of the last minute, the oldest messages that wait for it, and by their names
    the lines of its last hour.
    """

    numbers: HandlerShown | None
    waiting: list[WaitingAnswer]
    lines: dict[str, HourLine]


async def handler_page(request: WebRequest) -> HandlerPage:
    """The page of one handler. Raises Problem 404."""
    name = request.names["handler"]
    check_known(request.view.application, name)
    query = {"handler": name, "limit": str(MOST_OLDEST)}
    found, overview, hours, oldest = await gather(
        list_handlers(request.view, request.query, request.others(HandlersAnswer), handler=name),
        request.overviews.answer(),
        request.overviews.hours(),
        list_waiting(request.view, query, request.others(WaitingPage)),
    )
    shown = (each for service in overview.services for each in service.handlers if each.handler == name)
    return HandlerPage(
        **{field: getattr(found, field) for field in found.__struct_fields__},
        numbers=next(shown, None),
        waiting=oldest.waiting,
        lines={words: line for words, kind in _LINES.items() if (line := hours.of(kind, name)) is not None},
    )


async def handlers_page(request: WebRequest) -> msgspec.Struct:
    """The page of all handlers: their part of the overview."""
    return await request.overviews.answer()


async def _settle(request: WebRequest, fields: dict[str, str]) -> str:
    """Ask a handler for what a form says, and lead back to its page."""
    ask = from_form(fields, AskHandler, "operation", "who", "why")
    handler = request.names["handler"]
    done = await ask_handler(request.view, handler, ask)
    return f"/handlers/{quote(handler, safe='')}?{urlencode({'asked': done.operation})}"


ROUTES = (
    Page("/handlers", handlers_page, "handlers.html"),
    Page("/handlers/{handler}", handler_page, "handler.html"),
    Form("/handlers/{handler}", _settle),
)
