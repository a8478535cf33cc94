"""The gateway's HTTP face: JSON in, the ledger's answer out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from aiohttp import web

from agents.gateway.cards import behaviour
from agents.gateway.ledger import GroupCommit, Ledger
from agents.gateway.wire import ChargeAsk, RefundAsk, Refusal, VoidAsk

if TYPE_CHECKING:
    from agents.gateway.ledger import LedgerAnswer

T = TypeVar("T")

LOST_ANSWER_HELD = 30.0  # seconds for which the connection of a lost answer stays open
MAX_PAGE = 10_000

_STATUS = {
    "operation_conflict": 409,
    "already_refunded": 409,
    "not_captured": 409,
    "unknown_charge": 404,
    "unknown_operation": 404,
    "unavailable": 503,
    "ledger_unavailable": 503,
    "invalid": 422,
    "failed": 500,
}

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_read_charge = msgspec.json.Decoder(ChargeAsk).decode
_read_void = msgspec.json.Decoder(VoidAsk).decode
_read_refund = msgspec.json.Decoder(RefundAsk).decode


class GatewayServer:
    """The routes, over one ledger file with a connection for the writer and one for readers."""

    def __init__(self, path: Path) -> None:
        self._books = Ledger(path)
        self._copy = Ledger(path)
        self._writer = GroupCommit(self._books)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-reader")
        self._stopping = asyncio.Event()

    def application(self) -> web.Application:
        """The aiohttp application; its cleanup finishes the requests that wait and closes the ledger."""
        app = web.Application(middlewares=[_errors_are_json], client_max_size=16 * 1024)
        app.router.add_post("/charges", self._charge)
        app.router.add_post("/voids", self._void)
        app.router.add_post("/refunds", self._refund)
        app.router.add_get(r"/operations/{operation:[\s\S]+}", self._find)
        app.router.add_get("/ledger", self._ledger)
        app.router.add_get("/health", self._health)
        app.on_shutdown.append(self._let_go)
        app.cleanup_ctx.append(self._close_at_the_end)
        return app

    async def _charge(self, request: web.Request) -> web.Response:
        ask = _read_charge(await request.read())
        answer = await self._writer.do(ask)
        behaves = behaviour(ask.card)
        if answer.first and behaves.answer_lost:
            await self._lose(request)
        if behaves.delay:
            await self._wait(behaves.delay)
        return _answer(answer)

    async def _void(self, request: web.Request) -> web.Response:
        return _answer(await self._writer.do(_read_void(await request.read())))

    async def _refund(self, request: web.Request) -> web.Response:
        return _answer(await self._writer.do(_read_refund(await request.read())))

    async def _find(self, request: web.Request) -> web.Response:
        operation = request.match_info["operation"]
        row = await self._read(lambda: self._copy.find(operation))
        if row is None:
            return _refused(Refusal("unknown_operation", f"nothing was done under {operation}"))
        return _json(200, row)

    async def _ledger(self, request: web.Request) -> web.Response:
        after = _number(request, "after", default=0, least=0, most=2**62)
        limit = _number(request, "limit", default=1000, least=1, most=MAX_PAGE)
        return _json(200, await self._read(lambda: self._copy.page(after, limit)))

    async def _health(self, _: web.Request) -> web.Response:
        await self._read(lambda: self._copy.find("health"))  # the ledger answers, not just the port
        return _json(200, {"status": "ok"})

    async def _read(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, ask)

    async def _lose(self, request: web.Request) -> None:
        """Say nothing until the caller has hung up (which cancels this), then hang up."""
        await self._wait(LOST_ANSWER_HELD)
        if request.transport is not None:
            request.transport.abort()

    async def _wait(self, seconds: float) -> None:
        """So long, or until the gateway stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _let_go(self, _: web.Application) -> None:
        self._stopping.set()

    async def _close_at_the_end(self, _: web.Application) -> AsyncIterator[None]:
        yield
        await self._writer.close()
        self._reader.shutdown()
        self._copy.close()
        self._books.close()


def runner(app: web.Application) -> web.AppRunner:
    """A runner without an access log, under which a handler ends when its caller hangs up."""
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=5.0)


@web.middleware
async def _errors_are_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except msgspec.ValidationError as error:
        return _refused(Refusal("invalid", str(error)))
    except (msgspec.DecodeError, UnicodeError) as error:
        return _refused(Refusal("invalid", f"the body is not JSON: {error}"), status=400)
    except web.HTTPException as error:  # no such path, no such method, too large
        return _refused(Refusal("invalid", error.text or error.reason), status=error.status)
    except sqlite3.Error as error:
        _log.exception("%s %s: the ledger failed, nothing was done", request.method, request.path)
        return _refused(Refusal("ledger_unavailable", f"{type(error).__name__}: {error}"))
    except Exception as error:  # noqa: BLE001 - logged whole, and answered as JSON
        _log.exception("%s %s failed", request.method, request.path)
        return _refused(Refusal("failed", f"{type(error).__name__}: {error}"))


def _number(request: web.Request, name: str, *, default: int, least: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise msgspec.ValidationError(f"`{name}` is {text!r}, expected a number from {least} to {most}")
    return int(text)


def _answer(answer: LedgerAnswer) -> web.Response:
    if isinstance(answer.row, Refusal):
        return _refused(answer.row)
    created = answer.first and answer.row.status != "declined"
    return _json(201 if created else 200, answer.row)


def _refused(refusal: Refusal, status: int | None = None) -> web.Response:
    return _json(status or _STATUS[refusal.error], refusal)


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=_encode(value), content_type="application/json")
