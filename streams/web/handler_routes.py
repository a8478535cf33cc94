"""Addresses of handlers: what they do, and what operators ask of them; JSON only."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from streams.web.handler_answers import AskHandler, HandlersAnswer
from streams.web.handlers import HANDLERS_PATH, ask_handler, list_handlers
from streams.web.letter_routes import AsJson, Session, View, check_origin
from streams.web.owner import asker
from streams.web.view import Problem

_decode_ask = msgspec.json.Decoder(AskHandler).decode


def handler_routes(view_key: View, session_key: Session, as_json: AsJson) -> list[web.RouteDef]:
    """Every address of handlers. What changes something takes JSON only."""

    def asking(request: web.Request) -> dict[str, Any]:
        return asker(request, request.app[view_key], request.app[session_key], HandlersAnswer)

    async def handlers(request: web.Request) -> msgspec.Struct:
        return await list_handlers(request.app[view_key], request.query, **asking(request))

    async def handler(request: web.Request) -> msgspec.Struct:
        view, name = request.app[view_key], request.match_info["handler"]
        return await list_handlers(view, request.query, handler=name, **asking(request))

    async def operate(request: web.Request) -> msgspec.Struct:
        check_origin(request)
        try:
            asked = _decode_ask(await request.read())
        except msgspec.DecodeError as error:
            raise Problem(400, "bad_request", str(error)) from error
        return await ask_handler(request.app[view_key], request.match_info["handler"], asked)

    return [
        web.get(HANDLERS_PATH, partial(as_json, handlers)),
        web.get(f"{HANDLERS_PATH}/{{handler}}", partial(as_json, handler)),
        web.post(f"{HANDLERS_PATH}/{{handler}}/operations", partial(as_json, operate)),
    ]
