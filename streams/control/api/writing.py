"""How answers and problems are written as JSON."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar.response.base import ASGIResponse

from streams.control.api.web_request import WebRequest
from streams.control.base.access import Visitor
from streams.control.base.view import ErrorAnswer, Problem, WorkerView
from streams.model.personal import masked, personal_fields

#: What the name of a file that is downloaded may not have, and its characters at most.
_NOT_IN_NAMES, MOST_OF_NAME = re.compile(r"[^A-Za-z0-9._-]+"), 80

encode = msgspec.json.Encoder().encode


def json_response(
    answer: msgspec.Struct, *, status: int = 200, headers: dict[str, str] | None = None
) -> ASGIResponse:
    """An answer as JSON."""
    return ASGIResponse(
        body=encode(answer), media_type="application/json", status_code=status, headers=headers
    )


async def as_json(answer: Callable[[WebRequest], Awaitable[Any]], request: WebRequest) -> ASGIResponse:
    """An answer as JSON; with `download` in the query, as a file."""
    found = seen_by(request.visitor, request.view, await answer(request))
    if not request.query.get("download"):
        return json_response(found)
    name = _NOT_IN_NAMES.sub("-", request.path.removeprefix("/api/") + request.query.get("q", ""))
    kept = {"Content-Disposition": f'attachment; filename="{name[:MOST_OF_NAME]}.json"'}
    return json_response(found, headers=kept)


def seen_by(visitor: Visitor, view: WorkerView, answer: Any) -> Any:
    """The answer as the visitor may see it: who may only look sees nothing personal."""
    if visitor.operates or not (names := personal_fields(view.application)):
        return answer
    return masked(answer, names)


def headers_of(problem: Problem, headers: dict[str, str] | None = None) -> dict[str, str]:
    """The headers of a problem's answer, and further ones."""
    asks_for_token = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return {**(headers or {}), **problem.headers, **asks_for_token}


def problem_response(problem: Problem, headers: dict[str, str]) -> ASGIResponse:
    """A problem as JSON."""
    return json_response(ErrorAnswer(problem.error, problem.detail), status=problem.status, headers=headers)
