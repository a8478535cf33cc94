"""Addresses of sagas, and what operators ask of them."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import msgspec

from streams.web.base.view import Problem
from streams.web.sagas.saga_answers import AskSaga, SagasAnswer, SagaShown
from streams.web.sagas.saga_counts import COUNTS_PATH
from streams.web.sagas.sagas import SAGAS_PATH, ask_saga, list_sagas, show_saga
from streams.web.site.saga_pages import sagas_over_time, sagas_page
from streams.web.site.web_request import ApiOperation, Form, Read, WebRequest

_decode_ask = msgspec.json.Decoder(AskSaga).decode


async def _sagas(request: WebRequest) -> msgspec.Struct:
    return await list_sagas(request.view, request.query, **request.asker(SagasAnswer))


async def _saga(request: WebRequest) -> msgspec.Struct:
    return await show_saga(request.view, request.names["saga"], **request.asker(SagaShown))


async def _operate(request: WebRequest) -> msgspec.Struct:
    wanted = request.json(_decode_ask)
    return await ask_saga(request.view, request.names["saga"], wanted, ask=request.asker(SagaShown)["ask"])


async def _repair(request: WebRequest, fields: dict[str, str]) -> str:
    """Ask a saga for what a form says, and lead back to its page."""
    wanted = {name: fields.get(name, "") for name in ("operation", "who", "why", "step")}
    try:
        ask = msgspec.convert(wanted, AskSaga)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad_request", str(error)) from error
    ident = request.names["saga"]
    told = await ask_saga(request.view, ident, ask, ask=request.asker(SagaShown)["ask"])
    said = urlencode({"asked": f"{told.operation} {told.step}".strip()})
    return f"/sagas/{quote(ident, safe='')}?{said}"


ROUTES = (
    Read("/sagas", _sagas),
    Read("/sagas", sagas_page, "sagas.html", json=None),
    Read(COUNTS_PATH.removeprefix("/api"), sagas_over_time),
    Read("/sagas/{saga}", _saga, "saga.html"),
    Form("/sagas/{saga}", _repair),
    ApiOperation(f"{SAGAS_PATH.removeprefix('/api')}/{{saga}}/operations", _operate),
)
