"""How answers are written for who asks: pages, JSON, problems, and where a form leads."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from litestar.datastructures import Cookie
from litestar.response.base import ASGIResponse

from streams.console.pages import json_response, page_response
from streams.console.requests import AnyRequest, query_of, shown_path
from streams.console.web_request import CSRF, Act, FormPage, LoginRedirect, WebRequest
from streams.control.base.access import LOGIN, LOGOUT, Role, Visitor
from streams.control.base.asking import PASSING
from streams.control.base.sessions import KNOWN, KNOWN_LASTS, LASTS, SESSION
from streams.control.base.view import ErrorAnswer, Problem, WorkerView
from streams.model.personal import masked, personal_fields

#: What an address has as it is: what is reserved, and what is escaped already.
_IN_ADDRESSES = "/?#[]@!$&'()*+,;=:%~"
#: What the name of a file that is downloaded may not have, and its characters at most.
_NOT_IN_NAMES, MOST_OF_NAME = re.compile(r"[^A-Za-z0-9._-]+"), 80
_NOT_PAGES = ("/api/", "/health/", "/metrics")


async def acted(act: Act, request: WebRequest) -> ASGIResponse:
    """Do what a form asks for, and lead to what it shows then."""
    match await act(request, request.form()):
        case FormPage(template, answer):
            return page(template, request, answer=answer)
        case LoginRedirect(path, session, browser):
            return see(path, *_cookies_of_login(request, session, browser))
        case path:
            return see(path)


async def as_json(answer: Callable[[WebRequest], Awaitable[Any]], request: WebRequest) -> ASGIResponse:
    """An answer as JSON; with `download` in the query, as a file."""
    found = _for(request.visitor, request.view, await answer(request))
    if not request.query.get("download"):
        return json_response(found)
    name = _NOT_IN_NAMES.sub("-", request.path.removeprefix("/api/") + request.query.get("q", ""))
    kept = {"Content-Disposition": f'attachment; filename="{name[:MOST_OF_NAME]}.json"'}
    return json_response(found, headers=kept)


def page(template: str, request: WebRequest, **values: Any) -> ASGIResponse:
    """A page for who asks. Who comes for the first time is given the token of forms."""
    csrf = request.csrf or secrets.token_urlsafe(32)
    secure = _is_over_tls(request)
    cookies = (
        [] if request.csrf else [Cookie(CSRF, value=csrf, httponly=True, samesite="strict", secure=secure)]
    )
    if "answer" in values:
        values["answer"] = _for(request.visitor, request.view, values["answer"])
    more: dict[str, Any] = {
        "query": request.query,
        "path": request.path,
        "csrf": csrf,
        "visitor": request.visitor,
        "app": request.view.application.layout.app_id,
        "now": request.view.now(),
    }
    return page_response(template, cookies, **more, **values)


def _for(visitor: Visitor, view: WorkerView, answer: Any) -> Any:
    """The answer as the visitor may see it: who may only look sees nothing personal."""
    if visitor.operates or not (names := personal_fields(view.application)):
        return answer
    return masked(answer, names)


def _cookies_of_login(request: WebRequest, session: str, browser: str) -> list[Cookie]:
    """After a login, forms have another token: who has planted the one before knows nothing."""
    given = {SESSION: (session, LASTS if session else 0.0), CSRF: (secrets.token_urlsafe(32), None)}
    if browser:
        given[KNOWN] = browser, KNOWN_LASTS
    secure = _is_over_tls(request)
    return [
        Cookie(
            name,
            value=value,
            max_age=None if lasts is None else int(lasts),
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        for name, (value, lasts) in given.items()
    ]


def _is_over_tls(request: WebRequest) -> bool:
    """Whether the visitor's browser speaks TLS. Workers speak plain HTTP; a proxy that ends TLS before them
    says so in one of two headers, and a browser that sends a form says it by itself.
    """
    nearest = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip().lower()
    forwarded = request.headers.get("Forwarded", "").partition(",")[0].lower().replace('"', "")
    says_https = "proto=https" in (part.strip() for part in forwarded.split(";"))
    return nearest == "https" or says_https or request.headers.get("Origin", "").startswith("https://")


def see(path: str, *cookies: Cookie) -> ASGIResponse:
    """Another page instead. What a header cannot have, such as a line end, is escaped in the address."""
    headers = {"Location": quote(path, safe=_IN_ADDRESSES)}
    return ASGIResponse(status_code=303, headers=headers, cookies=cookies, media_type="text/plain")


class FormAgain(NamedTuple):
    """A form that could not be done, with what was typed; `sent`: it may have been sent all the same."""

    fields: Mapping[str, str]
    csrf: str
    sent: bool


def form_again(request: WebRequest, *, sent: bool) -> FormAgain | None:
    """The form that was sent with a request; None: it was none of a page's, or a login."""
    operates = request.visitor.operates and request.path not in (LOGIN, LOGOUT)
    if not operates or request.path.startswith(_NOT_PAGES):
        return None
    try:
        return FormAgain(request.form(), request.csrf, sent)
    except Problem:  # a form of another page
        return None


def _address_of(request: AnyRequest) -> str:
    path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
    return f"{path}?{query}" if query else path


def refused(
    request: AnyRequest,
    problem: Problem,
    headers: dict[str, str] | None = None,
    again: FormAgain | None = None,
) -> ASGIResponse:
    """A problem as JSON or as a page, in the form of the answer that it replaces; `again` is the form that
    led to it.
    """
    headers = {
        **(headers or {}),
        **problem.headers,
        **({"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}),
    }
    path = shown_path(request)
    if path.startswith(_NOT_PAGES):
        return json_response(
            ErrorAnswer(problem.error, problem.detail), status=problem.status, headers=headers
        )
    return page_response(
        "problem.html",
        status=problem.status,
        headers=headers,
        problem=problem,
        passes=problem.error in PASSING,
        query=query_of(request),
        path=path,
        again=again,
        here=_address_of(request),
        csrf=again.csrf if again is not None else "",
        app="",
        visitor=Visitor(Role.VIEWER),
    )
