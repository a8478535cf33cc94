"""Addresses of sagas: answers that are pages and JSON alike, and what operators ask of them, JSON only."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from streams.web.letter_routes import Answered, AsJson, Session, View, check_origin
from streams.web.owner import asker
from streams.web.saga_answers import AskSaga, SagasAnswer, SagaShown
from streams.web.sagas import SAGAS_PATH, ask_saga, list_sagas, show_saga
from streams.web.view import Problem

_decode_ask = msgspec.json.Decoder(AskSaga).decode


def list_answer(view_key: View, session_key: Session) -> Answered:
    """What a list of sagas says."""

    async def sagas(request: web.Request) -> msgspec.Struct:
        view = request.app[view_key]
        return await list_sagas(
            view, request.query, **asker(request, view, request.app[session_key], SagasAnswer)
        )

    return sagas


def shown_answer(view_key: View, session_key: Session) -> Answered:
    """What a saga's timeline says."""

    async def saga(request: web.Request) -> msgspec.Struct:
        view, ident = request.app[view_key], request.match_info["saga"]
        return await show_saga(view, ident, **asker(request, view, request.app[session_key], SagaShown))

    return saga


def saga_routes(view_key: View, session_key: Session, as_json: AsJson) -> list[web.RouteDef]:
    """The address of operations. It takes JSON only, as those of dead letters do."""

    async def operate(request: web.Request) -> msgspec.Struct:
        check_origin(request)
        try:
            asked = _decode_ask(await request.read())
        except msgspec.DecodeError as error:
            raise Problem(400, "bad_request", str(error)) from error
        view = request.app[view_key]
        ask = asker(request, view, request.app[session_key], SagaShown)["ask"]
        return await ask_saga(view, request.match_info["saga"], asked, ask=ask)

    return [web.post(f"{SAGAS_PATH}/{{saga}}/operations", partial(as_json, operate))]
