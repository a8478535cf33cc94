"""A request's span: it goes on in its caller's trace, and what it causes goes on in its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from litestar.enums import ScopeType
from structlog.contextvars import bound_contextvars

from streams.tracing.span import Span
from streams.tracing.tracer import Tracer

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

#: W3C Trace Context, version 00; an id of zeros is none.
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = "trace"
_FAILED = 500


class Traced:
    """The outermost ASGI application, where there are traces: each request is a span.

    Arguments:
        service: in whose name.
        unseen: paths whose requests have none, such as those of probes.
    """

    def __init__(
        self, app: ASGIApp, tracer: Tracer, *, service: str, unseen: Collection[str] = ("/health", "/metrics")
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._service = service
        self._unseen = frozenset(unseen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        given: Any = scope
        span = None
        if scope["type"] == ScopeType.HTTP and given["path"] not in self._unseen:
            headers = dict(given["headers"])
            method = given["method"]
            header, state = headers.get(b"traceparent"), headers.get(b"tracestate")
            span = self._tracer.request(header, state, method, self._service)
        if span is None:
            await self._app(scope, receive, send)
        else:
            await self._spanned(given, receive, send, span)

    async def _spanned(self, scope: Any, receive: Receive, send: Send, span: Span) -> None:
        scope.setdefault("state", {})[_STATE] = self._tracer, span
        span.attributes |= {
            "http.request.method": scope["method"],
            "url.scheme": scope["scheme"],
            "url.path": scope["path"],
        }

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.attributes["http.response.status_code"] = status = message["status"]
                if status >= _FAILED:
                    span.attributes["error.type"] = str(status)
                    span.error = f"answered {status}"
            await send(message)

        try:
            with bound_contextvars(**span.log_ids()):
                await self._app(scope, receive, noting)
        except BaseException as error:
            span.failed(error)
            raise
        finally:
            if route := scope.get("path_template"):
                span.name = f"{scope['method']} {route}"
                span.attributes["http.route"] = route
            span.end()


class Publishing:
    """A message that a request hands over.

    Attributes:
        traceparent: the message's.
        done: set it when the message is handed over: it has a span then.
    """

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self.done = False


@contextmanager
def publishing(request: Any, topic: str, message_id: str) -> Iterator[Publishing]:
    """The span of a message to a topic, as a part of the request's. Where there is none, the message has the
    `traceparent` that the request came with, if it is one.
    """
    tracer, cause = request.scope.get("state", {}).get(_STATE, (None, None))
    if tracer is None:
        yield Publishing(traceparent(request.headers.get("traceparent")) or "")
        return
    span = tracer.publish(cause, topic, {"messaging.message.id": message_id})
    handed = Publishing(span.header.decode())
    yield handed
    if handed.done:
        span.end()


def traceparent(header: str | None) -> str | None:
    """A W3C `traceparent` header, if it is one."""
    return header if header is not None and _TRACE.fullmatch(header) else None
