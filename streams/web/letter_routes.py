"""Addresses of dead letters and of operations on them, JSON only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp import ClientSession, web

from streams.web.jobs import Jobs
from streams.web.lane_rows import Query
from streams.web.letter_answers import Ask, GroupsAnswer, JobsAnswer, LettersAnswer, LetterShown
from streams.web.letters import group_letters, list_letters, show_letter
from streams.web.loopback import loopback_origin
from streams.web.owner import ask_json, asker
from streams.web.view import Problem, WorkerView

View = web.AppKey[WorkerView]
Session = web.AppKey[ClientSession]
_JOBS = web.AppKey("jobs", Jobs)
_decode_ask = msgspec.json.Decoder(Ask).decode

Answered = Callable[[web.Request], Awaitable[msgspec.Struct]]
#: Writes the answer to a request.
AsJson = Callable[[Answered, web.Request], Awaitable[web.Response]]


def letter_routes(view_key: View, session_key: Session, as_json: AsJson) -> list[web.RouteDef]:
    """Every address of dead letters. Those that change something take JSON only, which a foreign page that is
    open in a browser here cannot send.

    Longer than other functions: it is one list.
    """

    def asking(request: web.Request, kind: type[msgspec.Struct]) -> dict[str, Any]:
        return asker(request, request.app[view_key], request.app[session_key], kind)

    async def letters(request: web.Request) -> msgspec.Struct:
        return await list_letters(request.app[view_key], request.query, **asking(request, LettersAnswer))

    async def groups(request: web.Request) -> msgspec.Struct:
        return await group_letters(request.app[view_key], request.query, **asking(request, GroupsAnswer))

    async def letter(request: web.Request) -> msgspec.Struct:
        ident = request.match_info["letter"]
        return await show_letter(request.app[view_key], ident, **asking(request, LetterShown))

    async def operate(request: web.Request) -> msgspec.Struct:
        return await request.app[_JOBS].ask(await _asked(request))

    async def jobs(request: web.Request) -> msgspec.Struct:
        return JobsAnswer(jobs=request.app[_JOBS].all())

    async def job(request: web.Request) -> msgspec.Struct:
        return request.app[_JOBS].get(request.match_info["job"])

    async def stop(request: web.Request) -> msgspec.Struct:
        check_origin(request)
        return await request.app[_JOBS].stop(request.match_info["job"])

    base = "/api/dead-letters"
    return [
        web.get(base, partial(as_json, letters)),
        web.get(f"{base}/groups", partial(as_json, groups)),
        web.get(f"{base}/jobs", partial(as_json, jobs)),
        web.post(f"{base}/operations", partial(as_json, operate)),
        web.get(f"{base}/jobs/{{job}}", partial(as_json, job)),
        web.post(f"{base}/jobs/{{job}}/stop", partial(as_json, stop)),
        web.get(f"{base}/{{letter}}", partial(as_json, letter)),
    ]


async def jobs_of(view_key: View, session_key: Session, app: web.Application) -> AsyncIterator[None]:
    """The worker's jobs, for as long as its pages are served."""
    view, session = app[view_key], app[session_key]
    ask = partial(ask_json, session, kind=LettersAnswer, asked_by=view.url)

    async def page(query: Query) -> LettersAnswer:
        return await list_letters(view, query, asked_by=None, ask=ask)

    app[_JOBS] = Jobs(view, page)
    yield
    await app[_JOBS].close()


async def _asked(request: web.Request) -> Ask:
    check_origin(request)
    try:
        return _decode_ask(await request.read())
    except msgspec.DecodeError as error:
        raise Problem(400, "bad_request", str(error)) from error


def check_origin(request: web.Request) -> None:
    """Raises Problem 403 for what a foreign page could have sent."""
    origin = request.headers.get("Origin")
    if request.content_type != "application/json" or (origin and loopback_origin(origin) is None):
        raise Problem(403, "not_json", "operations are taken as application/json, from this machine only")
