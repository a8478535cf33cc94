"""The payments service's gateway port, over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, stop_before_delay
from tenacity.wait import wait_random_exponential

from agents.gateway.errors import GatewayInvalid, GatewayRefused, GatewayUnavailable, Unanswered
from agents.gateway.wire import ChargeAsk, Charged, RefundAsk, Refunded, Refusal, VoidAsk
from agents.payments.gateway import INVALID, Charge, Refund
from agents.settings import OrderSettings
from streams.tracing.span import current_traceparent

T = TypeVar("T")

_TOO_MANY_REQUESTS = 429
_MALFORMED = (413, 422)  # too large, or not within the bounds of its fields
_SHOWN = 2000  # characters of an answer that an error carries
_encode = msgspec.json.Encoder().encode
_read_charged = msgspec.json.Decoder(Charged).decode
_read_refunded = msgspec.json.Decoder(Refunded).decode
_read_either = msgspec.json.Decoder(Charged | Refunded).decode
_read_refusal = msgspec.json.Decoder(Refusal).decode


class HttpGateway:
    """Asks a gateway over HTTP, with up to `connections` requests under way at a time; use it `async with`.

    Network errors, timeouts, 429 and 5xx are retried as `retries` says: the operation's name makes that safe.
    Every method raises GatewayRefused for any other 4xx, and GatewayUnavailable when the time is used up.
    """

    def __init__(self, url: str, *, retries: GatewayRetries | None = None, connections: int = 64) -> None:
        self._url = url.rstrip("/")
        self._retries = retries or GatewayRetries()
        # Not the connector's own limit: waiting for a connection would count as time of the attempt.
        self._slots = asyncio.Semaphore(connections)
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session that all requests share."""
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self._retries.longest_attempt),
            headers={"Content-Type": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice does nothing."""
        if self._opened is not None:
            await self._opened.close()

    async def charge(self, *, operation: str, cents: int, card: str) -> Charge:
        """Charge `cents` (one or more) to `card` under `operation`. A declined card is an answer, and so is
        a charge that the gateway finds malformed.
        """
        return await self._charge_or_void("/charges", ChargeAsk(operation, cents, card))

    async def void(self, *, operation: str, cents: int, card: str) -> Charge:
        """See to it that a charge is not made under `operation` any more; answers the one that was, or one
        that is declined, as `invalid` when it could never be made.
        """
        return await self._charge_or_void("/voids", VoidAsk(operation, cents, card))

    async def _charge_or_void(self, path: str, ask: ChargeAsk | VoidAsk) -> Charge:
        operation, body = ask.operation, _encode(ask)
        try:
            done = await self._ask(
                operation, lambda: self._once(operation, "POST", path, body, _read_charged)
            )
        except GatewayInvalid:
            return Charge("", operation, "declined", INVALID, ask.cents)
        return _charge(done)

    async def refund(self, *, operation: str, charge_operation: str) -> Refund:
        """Give back the whole of the charge that was made under `charge_operation`."""
        body = _encode(RefundAsk(operation, charge_operation))
        done = await self._ask(
            operation, lambda: self._once(operation, "POST", "/refunds", body, _read_refunded)
        )
        return _refund(done)

    async def find(self, operation: str) -> Charge | Refund | None:
        """Return the charge or refund made under `operation`; None when there is none."""
        path = f"/operations/{quote(operation, safe='')}"
        try:
            done = await self._ask(operation, lambda: self._once(operation, "GET", path, None, _read_either))
        except GatewayRefused as refused:
            if refused.status == 404 and '"unknown_operation"' in refused.body:
                return None
            raise
        return _charge(done) if isinstance(done, Charged) else _refund(done)

    async def _ask(self, operation: str, once: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer, or no time for another attempt."""
        started = time.monotonic()
        attempts = 0
        first: Unanswered | None = None
        last: Unanswered | None = None

        async def attempt() -> T:
            nonlocal attempts, last
            attempts += 1
            try:
                return await once()
            except Unanswered as error:
                last = error
                raise

        async def further() -> T:
            nonlocal first
            if first is not None:  # tenacity counts the attempt that was made, too
                error, first = first, None
                raise error
            return await attempt()

        try:
            async with asyncio.timeout(self._retries.total):
                try:
                    return await attempt()  # mostly enough; tenacity takes 60 us beside 84 of the request
                except Unanswered as error:
                    first = error
                return await self._retries.retrying(spent=time.monotonic() - started)(further)
        except (Unanswered, TimeoutError) as error:
            spent = time.monotonic() - started
            raise GatewayUnavailable(operation, attempts, spent, last) from (last or error)

    async def _once(
        self, operation: str, method: str, path: str, body: bytes | None, read: Callable[[bytes], T]
    ) -> T:
        trace = current_traceparent()
        headers = {"traceparent": trace} if trace else None
        try:
            async with (
                self._slots,
                self._session.request(
                    method, self._url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                status, answer = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unanswered(f"{operation}: {type(error).__name__} {error}".rstrip()) from error
        if status in (200, 201):
            try:
                return read(answer)
            except msgspec.MsgspecError as error:
                raise Unanswered(f"{operation}: the answer is not understood: {error}") from error
        detail = answer[:_SHOWN].decode(errors="replace")
        if status == _TOO_MANY_REQUESTS or status >= 500:
            raise Unanswered(f"{operation}: {status} {detail}")
        kind = _refused(answer) if status in _MALFORMED else GatewayRefused
        raise kind(operation, status, detail)

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            raise RuntimeError("HttpGateway is not open: use it `async with`")
        return self._opened


def _refused(answer: bytes) -> type[GatewayRefused]:
    """Return the error of a 4xx: about the request's values only where the gateway itself says so."""
    try:
        malformed = _read_refusal(answer).error == "invalid"
    except (msgspec.MsgspecError, UnicodeError):
        malformed = False
    return GatewayInvalid if malformed else GatewayRefused


def _charge(done: Charged) -> Charge:
    return Charge(done.charge_id, done.operation, done.status, done.reason, done.cents)


def _refund(done: Refunded) -> Refund:
    return Refund(done.refund_id, done.operation, done.charge_operation, done.status, done.cents)


@asynccontextmanager
async def gateway_client(settings: OrderSettings) -> AsyncIterator[HttpGateway]:
    """The client of the gateway that the settings name, while a worker runs. Raises SettingsError."""
    retries = GatewayRetries(total=settings.gateway_patience, most=settings.gateway_attempts)
    async with HttpGateway(settings.gateway(), retries=retries) as client:
        yield client


@dataclass(frozen=True, slots=True)
class GatewayRetries:
    """When to ask again, in seconds.

    Attributes:
        attempt: the longest one attempt may take, unless it is the only one.
        total: the longest all attempts and the waits between them may take.
        base: the first wait is between nothing and this.
        factor: each further wait may be this much longer,
        cap: up to this.
        most: attempts of a call at most; 0: as many as there is time for.
    """

    attempt: float = 1.0
    total: float = 10.0
    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    most: int = 0

    @property
    def longest_attempt(self) -> float:
        """The longest one attempt may take: an only one has all the time that there is."""
        return self.total if self.most == 1 else self.attempt

    @property
    def waits(self) -> wait_random_exponential:
        """Draws each wait from all of its window: callers that failed together do not come back together."""
        return wait_random_exponential(multiplier=self.base, exp_base=self.factor, max=self.cap)

    def retrying(self, *, spent: float) -> AsyncRetrying:
        """Asks again after Unanswered, and raises the last one. It serves one call, which has taken `spent`
        seconds of `total`.
        """
        out_of_time = stop_before_delay(self.total - spent)
        return AsyncRetrying(
            retry=retry_if_exception_type(Unanswered),
            wait=self.waits,
            stop=out_of_time | stop_after_attempt(self.most) if self.most else out_of_time,
            reraise=True,
        )
