"""A worker's server as an ASGI application: who may ask, what a request is, and how its answer is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, cast
from urllib.parse import unquote

import structlog
from aiohttp import ClientSession
from litestar import Litestar, Response
from litestar.config.compression import CompressionConfig
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from streams.brokers import READ
from streams.control.api.overviews import Overviews, overviews
from streams.control.api.requests import AnyRequest, address_of, allowed, query_of, router_path, shown_path
from streams.control.api.web_request import ApiOperation, Read, WebRequest
from streams.control.api.writing import as_json, headers_of, problem_response
from streams.control.base.access import LOGIN, LOGOUT, Access, Incoming, Visitor
from streams.control.base.asked import IN_QUERY
from streams.control.base.asking import patience_of, patiently
from streams.control.base.lane_rows import Query
from streams.control.base.others import Others
from streams.control.base.owner import ASKED_BY, ask_json
from streams.control.base.view import Kept, Problem, WorkerView
from streams.control.letters.jobs import Jobs
from streams.control.letters.letter_answers import LettersAnswer, OutcomesAnswer
from streams.control.letters.letters import list_letters
from streams.control.letters.operation_answers import outcomes
from streams.control.metrics.metrics import WorkerMetrics
from streams.errors import ClusterUnavailable, SteadfaustError
from streams.units import KIB, MIB

if TYPE_CHECKING:
    from litestar.types import Message, Receive, Scope, Send

log = structlog.get_logger(__name__)

Route: TypeAlias = Read | ApiOperation
#: Writes an answer.
Write = Callable[[WebRequest], Awaitable[ASGIResponse]]
#: The addresses that programs ask, which have each problem as JSON.
FOR_PROGRAMS = ("/api/", "/health/", "/metrics")
NO_CONSOLE = """\
This worker has no pages: pip install 'steadfaust[console]' and start it again.
Without them it answers at /api, /health/live, /health/ready and /metrics.
"""

#: Bytes of a request at most: an edited message is the largest.
MOST_ASKED = 4 * MIB
#: And of addresses that need no login.
MOST_AT_LOGIN = 8 * KIB
#: Workers that ask each other are near, and an event of a live page must not wait in a buffer. A page has its
#: form's token beside words of the address; no foreign page can measure that: its request has no cookie.
_COMPRESSION = CompressionConfig("gzip", gzip_compress_level=6, exclude=["^/api/", "^/live/"])
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:"
    "; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` browsers say `Origin: null` of our own forms, which are then taken for foreign ones.
    "Referrer-Policy": "same-origin",
}


class Address(NamedTuple):
    """An address of a console, which writes its answers itself."""

    method: str
    path: str
    write: Write


class Refusal(NamedTuple):
    """A request that has no answer.

    Attributes:
        path, query: as they came, decoded; `address` is both of them as they came.
        asked: the request; None: it was refused before it was read.
        sent: something that it asks for may have been done all the same.
    """

    problem: Problem
    headers: dict[str, str]
    path: str
    query: Mapping[str, str]
    address: str
    asked: WebRequest | None
    sent: bool


class Console(Protocol):
    """Pages that are served beside the API."""

    @property
    def addresses(self) -> Iterable[Address]:
        """All of them, none of which begins like those for programs."""

    def serving(self, view: WorkerView, overviews: Overviews) -> AbstractAsyncContextManager[None]:
        """Show this worker for as long as this is open."""

    def end_live(self) -> None:
        """End the streams of live pages."""

    def refused(self, refusal: Refusal) -> ASGIResponse:
        """A problem as people read it."""


class Site:
    """The answers of one worker, to be served on a loopback address, and on others to who may ask.

    It works while it is entered. It is itself what a server calls.
    """

    def __init__(
        self,
        view: WorkerView,
        access: Access = Access(),
        *,
        routes: Iterable[Route] = (),
        plain: Mapping[str, Write],
        console: Console | None = None,
    ) -> None:
        self._view = view
        self._access = access
        self._session: ClientSession | None = None
        self._jobs: Jobs | None = None
        self._kept: dict[str, Kept] = {}
        self._overviews: Overviews | None = None
        self._console = console
        self._opened = AsyncExitStack()
        self.metrics = WorkerMetrics(view)
        handlers = [self._handler("GET", path, write) for path, write in plain.items()]
        for route in routes:
            method = "GET" if isinstance(route, Read) else "POST"
            handlers.append(self._handler(method, route.path, partial(as_json, route.answer)))
        pages = [Address("GET", "/", _no_console)] if console is None else console.addresses
        handlers += [self._handler(*each) for each in pages]
        self._app = Litestar(
            handlers,
            exception_handlers={
                HTTPException: lambda request, error: _Made(self._not_routed(request, error))
            },
            request_max_body_size=MOST_ASKED,
            compression_config=_COMPRESSION,
            openapi_config=None,
            logging_config=None,
        )

    async def __aenter__(self) -> Self:
        enter = self._opened.enter_async_context
        # No proxy: the other workers are here, or near. Requests go to them alone, so all are shown the
        # token.
        self._session = await enter(ClientSession(trust_env=False, headers=self._access.headers))
        await enter(self.metrics.sampling())
        self._overviews = await enter(overviews(self._view, self.metrics.sampler, self._session))
        self._jobs = Jobs(self._view, self._letters, self._outcomes)
        self._kept = {}
        if self._console is not None:
            await enter(self._console.serving(self._view, self._overviews))
        self._opened.push_async_callback(self._jobs.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    def end_live(self) -> None:
        """End the streams of live pages: a server that stops waits for them."""
        if self._console is not None:
            self._console.end_live()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application. Without access, a request does not even learn whether a page exists."""

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                more = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
                if b"cache-control" not in there:
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        given: Any = scope
        inner = dict(given)
        if scope["type"] == ScopeType.HTTP:
            # A request for the head alone is answered like others: the server leaves out the body. And
            # the framework would answer OPTIONS itself, to anybody.
            inner["method"] = {"HEAD": "GET", "OPTIONS": "TRACE"}.get(given["method"], given["method"])
            inner["path"] = router_path(given["raw_path"])
        await self._app(cast(Any, inner), receive, send_safe)

    def _handler(self, method: str, path: str, write: Write) -> HTTPRouteHandler:
        async def handle(request: AnyRequest) -> ASGIResponse:
            return await self._answered(request, write)

        route: Any = HTTPRouteHandler
        handler: Any = route(
            path.replace("}", ":str}"), http_method=method, request_max_body_size=_most(path)
        )
        made: HTTPRouteHandler = handler(handle)
        return made

    async def _answered(self, request: AnyRequest, write: Write) -> ASGIResponse:
        """The answer, or the problem in its place."""
        asked: WebRequest | None = None
        try:
            visitor = self._visitor(request)
            web_request = asked = await self._web_request(request, visitor)
            # Nothing is done before a question has its answer, so that all of it can be repeated.
            most = self._view.patience if ASKED_BY not in web_request.headers else 0.0  # the asker waits
            usual = min(most, READ) if request.method == "GET" else most
            within = patience_of(web_request.headers, usual, most)
            away = (ClusterUnavailable,) if request.method == "GET" and within > READ else ()
            response = await patiently(lambda: write(replace(web_request, silent={})), within, passing=away)
        except Problem as problem:  # all of them come before anything is sent
            return self._refused(request, problem, asked=asked)
        except HTTPException as error:
            return self._not_routed(request, error)
        except SteadfaustError as error:
            return self._refused(request, Problem(503, "not_now", str(error)), asked=asked, sent=True)
        except Exception as error:
            log.exception("page_failed", path=request.scope["path"])
            detail = f"{type(error).__name__}: see this worker's log"
            return self._refused(request, Problem(500, "failed", detail))
        if request.method == "POST":
            who = {"role": visitor.role.value, "visitor": visitor.name, "client": web_request.client}
            log.info("web_operation", path=web_request.path, status=response.status_code, **who)
        return response

    def _visitor(self, request: AnyRequest) -> Visitor:
        """Who it is. Raises Problem."""
        path = shown_path(request)
        visitor = self._access.visitor(_incoming(request))
        if request.method == "POST" and path not in (LOGIN, LOGOUT):
            visitor.require_operator()
        return visitor

    def _not_routed(self, request: AnyRequest, error: HTTPException) -> ASGIResponse:
        """Answer an error of the framework: no such address, no such method, a body that is too large."""
        try:
            self._visitor(request)
        except Problem as problem:
            return self._refused(request, problem)
        path = shown_path(request)
        word, detail, headers = {
            404: ("not_found", f"there is nothing at {path}", {}),
            405: ("method_not_allowed", f"{path} does not take this method", allowed(error)),
            413: ("too_large", f"{_most(path)} bytes are the most that is taken", {}),
        }.get(error.status_code, ("bad_request", error.detail, {}))
        return self._refused(request, Problem(error.status_code, word, detail), headers)

    def _refused(
        self,
        request: AnyRequest,
        problem: Problem,
        headers: dict[str, str] | None = None,
        *,
        asked: WebRequest | None = None,
        sent: bool = False,
    ) -> ASGIResponse:
        """A problem as JSON or as a page, in the form of the answer that it replaces."""
        path, all_headers = shown_path(request), headers_of(problem, headers)
        if self._console is None or path.startswith(FOR_PROGRAMS):
            return problem_response(problem, all_headers)
        return self._console.refused(
            Refusal(problem, all_headers, path, query_of(request), address_of(request), asked, sent)
        )

    async def _web_request(self, request: AnyRequest, visitor: Visitor) -> WebRequest:
        if self._session is None or self._jobs is None or self._overviews is None:
            raise Problem(503, "not_now", "the worker starts, or ends")
        query = query_of(request)
        return WebRequest(
            view=self._view,
            access=self._access,
            visitor=visitor,
            session=self._session,
            jobs=self._jobs,
            kept=self._kept,
            overviews=self._overviews,
            method=request.method,
            path=shown_path(request),
            names=_names(request, query),
            query=query,
            headers=request.headers,
            body=await request.body() if request.method == "POST" else b"",
            cookies=request.cookies,
            client=self._access.client(_incoming(request)),
        )

    async def _letters(self, query: Query) -> LettersAnswer:
        assert self._session is not None  # a job runs while the site is entered
        ask = partial(ask_json, self._session, kind=LettersAnswer, asked_by=self._view.url)
        return await list_letters(self._view, query, Others(ask))

    async def _outcomes(self, query: Query) -> OutcomesAnswer:
        assert self._session is not None  # as above
        ask = partial(ask_json, self._session, kind=OutcomesAnswer, asked_by=self._view.url)
        return await outcomes(self._view, query, Others(ask))


async def _no_console(_: WebRequest) -> ASGIResponse:
    return ASGIResponse(body=NO_CONSOLE, media_type="text/plain")


def _names(request: AnyRequest, query: Mapping[str, str]) -> dict[str, str]:
    """The parts of a path that its address leaves open. In place of one there may be a dash, with the name in
    the query: proxies change some names in a path.
    """
    return {
        name: query[name] if text == IN_QUERY and name in query else unquote(text)
        for name, text in request.path_params.items()
    }


def _most(path: str) -> int:
    return MOST_AT_LOGIN if path == LOGIN else MOST_ASKED


def _incoming(request: AnyRequest) -> Incoming:
    server, client = request.scope["server"], request.client
    return Incoming(
        server[0] if server else None,
        client.host if client else "",
        shown_path(request),
        request.headers,
        request.cookies,
    )


class _Made(Response[bytes]):
    """A response that is made already, in the form that the framework takes from handlers of exceptions."""

    def __init__(self, made: ASGIResponse) -> None:
        super().__init__(b"")
        self._made = made

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        return self._made
