"""Addresses of handlers: what they do, and what operators ask of them."""

from __future__ import annotations

import msgspec

from streams.control.api.web_request import ApiOperation, Read, WebRequest
from streams.control.handlers.handler_answers import AskHandler, HandlersAnswer
from streams.control.handlers.handlers import HANDLERS_PATH, ask_handler, list_handlers

_decode_ask = msgspec.json.Decoder(AskHandler).decode


async def _handlers(request: WebRequest) -> msgspec.Struct:
    return await list_handlers(
        request.view, request.query, request.others(HandlersAnswer), handler=request.names.get("handler", "")
    )


async def _operate(request: WebRequest) -> msgspec.Struct:
    return await ask_handler(request.view, request.names["handler"], request.json(_decode_ask))


ROUTES = (
    Read(HANDLERS_PATH, _handlers),
    Read(f"{HANDLERS_PATH}/{{handler}}", _handlers),
    ApiOperation(f"{HANDLERS_PATH}/{{handler}}/operations", _operate),
)
