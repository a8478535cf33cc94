"""Refuse invalid requests before a handler reads them, and answer HEAD and OPTIONS at each address."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

from litestar.enums import ScopeType
from litestar.plugins.problem_details import ProblemDetailsException

from streams.http.problems import MEDIA_TYPE, problem, problem_body
from streams.http.requests import request_id

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

#: Headers of which two would say two things: servers and proxies choose differently between them.
SINGLE = frozenset({"authorization", "content-type", "host"})
#: The path for questions to Litestar. No application has a handler for "-": it answers with the methods of
#: the address. To OPTIONS it answers with those of one handler.
_INSTEAD = {"HEAD": "GET", "OPTIONS": "-"}
_NO_CONTENT, _NOT_ALLOWED = 204, 405
_ALLOW = b"allow"


class RequestRules:
    """An ASGI application around one of Litestar's, inside of `Requests`.

    - 404 for a path with a character of 0, 400 for one that is no UTF-8.
    - 400 for a query parameter, or a header of `single`, that is there twice, and for two lengths of a body.
    - 408 for a body that does not come within `patience` seconds, 400 for one whose client has gone.
    - HEAD is answered as GET, without the body. OPTIONS and 405 name all methods of the address.

    Arguments:
        single: further headers that may be there once.
        patience: seconds that a client has for its body.
    """

    def __init__(self, app: ASGIApp, single: Collection[str] = (), *, patience: float = 30.0) -> None:
        self._app = app
        self._patience = patience
        self._single = {each.lower().encode("latin-1") for each in {*SINGLE, *single}}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        given: Any = scope
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
        elif (refused := self._refused(given)) is not None:
            await _answer(given, send, refused)
        else:
            answer = _Answer(given["method"], send)
            if (method := _INSTEAD.get(given["method"])) is not None:
                given = {**given, "method": method}
            await self._app(given, _Body(receive, self._patience), answer)

    def _refused(self, scope: Any) -> ProblemDetailsException | None:
        if "\0" in scope["path"]:
            return problem(404, "not-found", "No address contains a zero byte.")
        try:
            unquote_to_bytes(scope.get("raw_path") or b"").decode()
        except UnicodeDecodeError as error:
            return problem(400, "malformed", f"the path is not UTF-8: {error}")
        seen = Counter(name.lower() for name, _ in scope["headers"])
        for name in self._single:
            if seen[name] > 1:
                return problem(400, "ambiguous", f"the header {name.decode()} is there {seen[name]} times")
        if seen[b"content-length"] and seen[b"transfer-encoding"]:
            return problem(400, "ambiguous", "the body has a Content-Length and a Transfer-Encoding")
        query = scope.get("query_string", b"").decode("latin-1")
        for name, times in Counter(name for name, _ in parse_qsl(query, keep_blank_values=True)).items():
            if times > 1:
                return problem(400, "ambiguous", f"the query parameter {name} is there {times} times")
        return None


class _Body:
    """Receives a body. Raises a problem where it does not come: that is no mistake of the application."""

    def __init__(self, receive: Receive, patience: float) -> None:
        self._receive = receive
        self._until = asyncio.get_running_loop().time() + patience
        self._patience = patience
        self._is_whole = False

    async def __call__(self) -> Any:
        if self._is_whole:  # whether the client has gone
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message: Any = await self._receive()
        except TimeoutError:
            why = f"the body did not come within {self._patience:g} s"
            raise problem(408, "request-timeout", why, headers={"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise problem(400, "incomplete", "the client has gone before its body had come")
        self._is_whole = not message.get("more_body", False)
        return message


class _Answer:
    """Sends what an application answers to a request of this method."""

    def __init__(self, method: str, send: Send) -> None:
        self._method = method
        self._send = send
        self._drops = method == "HEAD"

    async def __call__(self, message: Message) -> None:
        sent: Any = message
        if sent["type"] == "http.response.start" and sent["status"] == _NOT_ALLOWED:
            allowed = _with_head(sent["headers"])
            if self._method == "OPTIONS":
                self._drops = True
                sent = {**sent, "status": _NO_CONTENT, "headers": [allowed]}
            else:
                rest = [each for each in sent["headers"] if each[0].lower() != _ALLOW]
                sent = {**sent, "headers": [*rest, allowed]}
        elif sent["type"] == "http.response.body" and self._drops:
            sent = {**sent, "body": b""}
        await self._send(sent)


def _with_head(headers: Any) -> tuple[bytes, bytes]:
    found = b",".join(value for name, value in headers if name.lower() == _ALLOW)
    methods = {each.strip() for each in found.split(b",") if each.strip()}
    if b"GET" in methods:
        methods.add(b"HEAD")
    return _ALLOW, b", ".join(sorted(methods))


async def _answer(scope: Any, send: Send, refused: ProblemDetailsException) -> None:
    body = problem_body(refused, request_id(scope))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": refused.status_code, "headers": headers})
    sent = b"" if scope["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": sent, "more_body": False})
