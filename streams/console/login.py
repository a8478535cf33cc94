"""Logging in with a token, and out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from streams.console.page import Form, LoginRedirect, Page
from streams.control.api.web_request import WebRequest
from streams.control.base.access import LOGIN, LOGOUT
from streams.control.base.sessions import KNOWN
from streams.control.base.view import Problem

log = structlog.get_logger(__name__)

#: Seconds until a wrong token is answered.
WRONG_TAKES = 0.5


class LoginPage(msgspec.Struct, frozen=True):
    """Where a login leads."""

    next: str


async def _login_page(request: WebRequest) -> msgspec.Struct:
    return LoginPage(_within(request.query.get("next", "/")))


async def _log_in(request: WebRequest, fields: Mapping[str, str]) -> LoginRedirect:
    token, browser = fields.get("token", "").strip(), request.cookies.get(KNOWN, "")
    found = request.access.log_in(token, request.client, browser)
    if found is None:
        log.warning("login_refused", client=request.client)
        await asyncio.sleep(WRONG_TAKES)
        raise Problem(401, "wrong_token", "wrong token: ask the operators of the workers for it")
    log.info("login", client=request.client)
    return LoginRedirect(_within(fields.get("next", "/")), *found)


async def _log_out(request: WebRequest, _: Mapping[str, str]) -> LoginRedirect:
    session = request.visitor.session
    if session is not None:
        request.access.ended.add(session.ident, session.until, request.access.now())
        await request.view.end_session(session.ident, session.until)
    log.info("logout", role=request.visitor.role.value, client=request.client)
    return LoginRedirect(LOGIN, "")


def _within(path: str) -> str:
    """The path, if it is of this worker: a login leads nowhere else. Browsers drop tabs and line ends from an
    address, and take a backslash for a slash.
    """
    leads_on = path.isprintable() and path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if leads_on else "/"


ROUTES = (
    Page(LOGIN, _login_page, "login.html"),
    Form(LOGIN, _log_in),
    Form(LOGOUT, _log_out),
)
