"""uvicorn in the caller's event loop: it takes no signals, and ends when the caller stops it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import structlog
import uvicorn

from streams.errors import SteadfaustError
from streams.system.listening import listen_at

if TYPE_CHECKING:
    from litestar.types import ASGIApp

log = structlog.get_logger(__name__)

_LOOK = 0.02
#: Seconds that requests under way have when the server ends.
_GRACE = 5


class CannotServe(SteadfaustError):
    """The server could not start on a socket that was its own."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller's loop."""
        yield


class HttpServer:
    """Serves an ASGI application while it is entered, at an address or on a socket that is `bound` to one.
    Requests under way have `grace` seconds when it ends. A port that lingers is waited for, and whoever
    listens there is named (CannotListen).
    `proxied`: a proxy on this machine is believed where a request comes from.

    Attributes:
        url: where it listens, once it is entered.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        bound: socket.socket | None = None,
        grace: int = _GRACE,
        proxied: bool = True,
    ) -> None:
        address: tuple[str, int] = bound.getsockname()[:2] if bound else (host, port)
        self._host, self._port = address
        self._bound = [bound] if bound else None
        self._server = _Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                access_log=False,
                log_config=None,
                lifespan="off",
                server_header=False,
                proxy_headers=proxied,
                timeout_graceful_shutdown=grace,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._bound is None:
            self._bound = await listen_at(self._host, self._port)
        self._task = asyncio.create_task(self._run())
        while not self._server.started:
            done, _ = await asyncio.wait([self._task], timeout=_LOOK)
            if done:
                self._task.result()
                raise CannotServe(f"the server on {self._host}:{self._port} has ended before it began")
        for bound in self._bound or ():  # else the port is taken for a minute by connections that it closed
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://{self._host}:{port}"
        log.info("http_serves", url=self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer what is under way, then end."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    async def _run(self) -> Any:
        try:
            await self._server.serve(self._bound)
        except SystemExit as error:  # uvicorn logs why, and would end the process
            raise CannotServe(
                f"cannot listen on {self._host}:{self._port}: another process has taken it this moment. Start"
                " again, or set another port"
            ) from error
