"""The id of a request: taken over or made, echoed, and in each log line that is written for it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import structlog
import uuid_utils
from litestar.enums import ScopeType
from structlog.contextvars import bound_contextvars

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger(__name__)

_HEADER = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_STATE = "request_id"


class Requests:
    """The outermost ASGI application: it names each request, and writes one log line when it is answered.

    A client's `X-Request-ID` is taken over if it is 1 to 128 letters, digits or `._:/+=-`; else one is made.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        name = _name(scope["headers"])
        scope.setdefault("state", {})[_STATE] = name
        status, started = 0, time.perf_counter()

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (_HEADER, name.encode())]
            await send(message)

        with bound_contextvars(request_id=name):
            try:
                await self.app(scope, receive, named)
            finally:
                log.info(
                    "http_request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round((time.perf_counter() - started) * 1000, 1),
                )


def request_id(scope: Any) -> str:
    """The id of the request with this ASGI scope; empty without `Requests` around the application."""
    return str(scope.get("state", {}).get(_STATE, ""))


def _name(headers: Any) -> str:
    for name, value in headers:
        if name == _HEADER and _ID.fullmatch(value):
            return str(value.decode())
    return str(uuid_utils.uuid7())
