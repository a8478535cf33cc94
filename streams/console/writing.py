"""How pages are written for who asks: answers, problems, and where a form leads."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from litestar.datastructures import Cookie
from litestar.response.base import ASGIResponse

from streams.console.page import CSRF, Act, FormPage, LoginRedirect, Page, csrf_of, form_of
from streams.console.pages import page_response
from streams.control.api.site import Refusal
from streams.control.api.web_request import WebRequest
from streams.control.api.writing import seen_by
from streams.control.base.access import LOGIN, LOGOUT, Role, Visitor
from streams.control.base.asking import PASSING
from streams.control.base.sessions import KNOWN, KNOWN_LASTS, LASTS, SESSION
from streams.control.base.view import Problem

#: What an address has as it is: what is reserved, and what is escaped already.
_IN_ADDRESSES = "/?#[]@!$&'()*+,;=:%~"


async def acted(act: Act, request: WebRequest) -> ASGIResponse:
    """Do what a form asks for, and lead to what it shows then."""
    match await act(request, form_of(request)):
        case FormPage(template, answer):
            return page(template, request, answer=answer)
        case LoginRedirect(path, session, browser):
            return see(path, *_cookies_of_login(request, session, browser))
        case path:
            return see(path)


async def shown(page_: Page, request: WebRequest) -> ASGIResponse:
    """The page of an answer, or the one to which it leads."""
    if page_.unasked and not request.query.get("q", "").strip():
        return page(page_.unasked, request)
    answer = await page_.answer(request)
    if page_.onward is not None and (there := page_.onward(answer)):
        return see(there)
    return page(page_.template, request, answer=answer)


def page(template: str, request: WebRequest, **values: Any) -> ASGIResponse:
    """A page for who asks. Who comes for the first time is given the token of forms."""
    known = csrf_of(request)
    csrf = known or secrets.token_urlsafe(32)
    secure = _is_over_tls(request)
    cookies = [] if known else [Cookie(CSRF, value=csrf, httponly=True, samesite="strict", secure=secure)]
    if "answer" in values:
        values["answer"] = seen_by(request.visitor, request.view, values["answer"])
    more: dict[str, Any] = {
        "query": request.query,
        "path": request.path,
        "csrf": csrf,
        "visitor": request.visitor,
        "app": request.view.application.layout.app_id,
        "now": request.view.now(),
    }
    return page_response(template, cookies, **more, **values)


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
    if request.method != "POST" or not operates:
        return None
    try:
        return FormAgain(form_of(request), csrf_of(request), sent)
    except Problem:  # a form of another page
        return None


def refused(refusal: Refusal) -> ASGIResponse:
    """A problem as a page, with the form that led to it."""
    problem, asked = refusal.problem, refusal.asked
    again = None if asked is None else form_again(asked, sent=refusal.sent)
    return page_response(
        "problem.html",
        status=problem.status,
        headers=refusal.headers,
        problem=problem,
        passes=problem.error in PASSING,
        query=refusal.query,
        path=refusal.path,
        again=again,
        here=refusal.address,
        csrf=again.csrf if again is not None else "",
        app="",
        visitor=Visitor(Role.VIEWER),
    )
