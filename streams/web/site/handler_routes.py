"""Addresses of handlers: what they do, and what operators ask of them."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import msgspec

from streams.web.handlers.handler_answers import AskHandler, HandlersAnswer
from streams.web.handlers.handlers import ask_handler, list_handlers
from streams.web.site.web_request import ApiOperation, Form, Read, WebRequest, from_form

_decode_ask = msgspec.json.Decoder(AskHandler).decode


async def _handlers(request: WebRequest) -> msgspec.Struct:
    return await list_handlers(
        request.view, request.query, handler=request.names.get("handler", ""), **request.asker(HandlersAnswer)
    )


async def _operate(request: WebRequest) -> msgspec.Struct:
    return await ask_handler(request.view, request.names["handler"], request.json(_decode_ask))


async def _settle(request: WebRequest, fields: dict[str, str]) -> str:
    """Ask a handler for what a form says, and lead back to its page."""
    ask = from_form(fields, AskHandler, "operation", "who", "why")
    handler = request.names["handler"]
    done = await ask_handler(request.view, handler, ask)
    return f"/handlers/{quote(handler, safe='')}?{urlencode({'asked': done.operation})}"


ROUTES = (
    Read("/handlers", _handlers, "handlers.html"),
    Read("/handlers/{handler}", _handlers, "handlers.html"),
    Form("/handlers/{handler}", _settle),
    ApiOperation("/handlers/{handler}/operations", _operate),
)
