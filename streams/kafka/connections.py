"""Connections to brokers that notice when a broker hangs.

aiokafka has one timeout for every request, `request_timeout_ms`. It must be long, because some answers take
long: a join waits for all members of the group, a write for its replicas. If a broker is frozen or cut off,
every request to it takes that long too, although the cluster elected a new leader long ago.

Here, if a broker has been silent for `PATIENCE` with a request open, a new connection asks for its API
versions, which every healthy broker answers at once. If it does not answer, the broker hangs: all connections
of this event loop to it are closed, so that clients look for the new leader at once. New connections to it
are refused, except for one attempt every `ATTEMPT_INTERVAL`.

A client that can reach no broker logs why. It gives up at once if a broker rejects its login or its
certificate, or has a bad certificate itself, because waiting does not help there.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import structlog
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError

from streams.errors import AccessRefused
from streams.kafka.security import refusal
from streams.kafka.throttles import client_of, throttles
from streams.kafka.wire import VersionedRequest

log = structlog.get_logger(__name__)

#: How long a broker may be silent with a request open until a request checks whether it is alive, in seconds.
PATIENCE = 2.0
#: Timeout of opening a connection, in seconds. aiokafka opens one at a time, so others wait for it.
CONNECT_TIMEOUT = 3.0
#: Seconds between attempts to connect to a broker that hangs, and the timeout of each attempt.
ATTEMPT_INTERVAL = 1.0
#: Seconds of silence before a broker is a warning. A broker that restarts is usually back sooner.
WARNED_AFTER = 2.0
#: A broker is no longer reported as silent this many seconds after the last failed attempt: it may be gone.
FORGOTTEN_AFTER = 30.0
#: Wait before a connection is refused, in seconds, because clients retry in a loop while a broker is down.
REFUSED_PAUSE = 0.05


class _Broker:
    """The reachability of a broker, for the clients of one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: WeakSet[ProbedConnection] = WeakSet()
        self.hangs = False
        self.asking: asyncio.Task[None] | None = None
        #: Monotonic times of the first and the last failure since the broker last answered; 0: it answers.
        self.silent_since = self.silent_at = 0.0
        self._attempt_after = 0.0

    def refuses(self, now: float) -> bool:
        """Whether to refuse a connection without trying. One attempt per `ATTEMPT_INTERVAL` is allowed."""
        if not self.hangs:
            return False
        if now < self._attempt_after:
            return True
        self._attempt_after = now + ATTEMPT_INTERVAL  # this attempt has ended by then
        return False

    def give_up(self, now: float) -> None:
        """Record that the broker hangs, and fail the requests that wait for it."""
        self.hangs = True
        self._attempt_after = now + ATTEMPT_INTERVAL
        self.fail(f"broker {self.address} does not answer")
        for connection in list(self.connections):
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)

    def fail(self, what: str) -> None:
        """Record that the broker was not reached. For running clients, this is logged once the broker hangs
        or has been down for `SAID_AFTER`. A starting client logs it itself, for all brokers at once.
        """
        now = time.monotonic()
        if not self.silent_since or now - self.silent_at > FORGOTTEN_AFTER:
            self.silent_since = now
        self.silent_at = now
        if _open_attempts() is None and (self.hangs or now - self.silent_since >= SAID_AFTER):
            _say(self.address, [(what, False)])

    def answer(self) -> None:
        """Record that the broker was reached."""
        self.hangs = False
        if self.silent_since and _said.pop(self.address, None) is not None:
            seconds = round(time.monotonic() - self.silent_since, 1)
            log.info("broker_answers_again", bootstrap=self.address, seconds=seconds)
        self.silent_since = 0.0


_brokers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], _Broker]] = WeakKeyDictionary()


def unanswered() -> dict[str, float]:
    """Seconds for which clients of this process have failed to reach a broker, by the broker's address."""
    now = time.monotonic()
    found: dict[str, float] = {}
    for brokers in list(_brokers.values()):
        for broker in list(brokers.values()):
            if broker.silent_since and now - broker.silent_at <= FORGOTTEN_AFTER:
                found[broker.address] = max(now - broker.silent_since, found.get(broker.address, 0.0))
    return found


def silent_brokers() -> list[str]:
    """A warning if clients of this process have failed to reach a broker for `WARNED_AFTER` seconds."""
    silent = [
        f"broker {address} for {seconds:.0f} s"
        for address, seconds in sorted(unanswered().items())
        if seconds >= WARNED_AFTER
    ]
    if not silent:
        return []
    warning = (
        f"Kafka does not answer: {', '.join(silent)}. It is tried again, and lanes commit once it answers;"
        " brokers_do_not_answer in the log says what came of each attempt"
    )
    return [warning]


class _Attempts:
    """A starting client's failed attempts to reach a broker: what happened, and whether it was refused.

    `over` means that the client has found a broker or given up; tasks that it started still see this object.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, bool]] = []
        self.over = False


_attempts: ContextVar[_Attempts | None] = ContextVar("attempts", default=None)


def _open_attempts() -> _Attempts | None:
    attempts = _attempts.get()
    return None if attempts is None or attempts.over else attempts


class ProbedConnection(AIOKafkaConnection):
    """A connection that checks whether its broker is alive when an answer takes long."""

    def __init__(self, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._options = options
        self.protocol: str = options.get("security_protocol", "PLAINTEXT")
        #: Whether the TCP connection was opened, even if it failed afterwards.
        self.was_open = False
        self._broker = _brokers.setdefault(self._loop, {}).setdefault((host, port), _Broker(f"{host}:{port}"))
        self._heard = 0.0
        self._doubt: asyncio.TimerHandle | None = None

    async def connect(self) -> Any:
        """Open the connection. Raises OSError, TimeoutError or KafkaError."""
        opened = await super().connect()
        self._broker.connections.add(self)
        return opened

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: FBT001, FBT002 - as overridden
        """Send a request; returns the wait for its answer. Raises KafkaConnectionError when it is broken."""
        self.was_open = True
        if not self._requests:
            self._heard = self._loop.time()
        if self._writer is not None and self._writer.is_closing():
            # It was reset a moment ago. uvloop would raise a RuntimeError, which aiokafka does not expect
            # (aiokafka #1038). That would end the group membership, and with it the worker.
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"the connection to {self.host}:{self.port} is broken")
        answer = super().send(request, expect_response)
        if self._doubt is None:
            self._doubt = self._loop.call_later(PATIENCE, self._look)
        return answer

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Any:
        """Close the connection. Its open requests fail with a KafkaConnectionError."""
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
        self._broker.connections.discard(self)
        return super().close(reason, exc)

    def _handle_frame(self, frame: Any) -> None:
        self._heard = self._loop.time()
        _, request, answer = self._requests[0]
        super()._handle_frame(frame)
        if throttle_ms := _throttle_ms(request, answer):
            # After its timeout, a request is sent again on a new connection.
            held = min(throttle_ms / 1000, self._request_timeout)
            throttles.note(request.API_KEY, held, client_of(self._options))

    def _look(self) -> None:
        self._doubt = None
        if not self._requests:
            return
        left = self._heard + PATIENCE - self._loop.time()
        if left <= 0 and self in self._broker.connections and self._broker.asking is None:
            asking = self._broker.asking = self._loop.create_task(self._ask())
            asking.add_done_callback(self._asked)
        self._doubt = self._loop.call_later(max(left, PATIENCE / 4), self._look)

    async def _ask(self) -> None:
        options = {**self._options, "on_close": None}
        try:
            opened = await _open(AIOKafkaConnection(self.host, self.port, **options), CONNECT_TIMEOUT)
        except (OSError, KafkaError):
            self._broker.give_up(self._loop.time())
        else:
            opened.close()

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._broker.asking = None
        if not asking.cancelled():
            asking.result()


def _throttle_ms(request: Any, answer: asyncio.Future[Any]) -> int:
    """How long the broker will not read this connection, from an answer; 0 if its request was given up."""
    if isinstance(request, VersionedRequest):
        return request.throttle_ms
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return 0
    return int(getattr(answer.result(), "throttle_time_ms", 0))


async def _open(connection: Any, bound: float) -> Any:
    async with asyncio.timeout(bound):
        await connection.connect()
    return connection


async def connect(host: str, port: int, **options: Any) -> ProbedConnection:
    """Open a connection. Raises OSError, TimeoutError or KafkaError."""
    connection = ProbedConnection(host, port, **options)
    broker, loop = connection._broker, asyncio.get_running_loop()
    if broker.refuses(loop.time()):
        await asyncio.sleep(REFUSED_PAUSE)
        broker.fail(f"broker {host}:{port} hangs")
        _note(f"broker {host}:{port} hangs")
        raise KafkaConnectionError(f"the broker at {host}:{port} hangs: it has not answered for seconds")
    bound = ATTEMPT_INTERVAL if broker.hangs else CONNECT_TIMEOUT
    try:
        await _open(connection, bound)
    except TimeoutError:
        broker.give_up(loop.time())
        _note(f"broker {host}:{port} does not answer")
        raise
    except (OSError, KafkaError) as error:
        broker.hangs = False  # it is down or refuses, and both fail quickly
        refused = refusal(error, host, port, options)
        what = refused or _trouble(error, connection)
        broker.fail(what)
        _note(what, refused=bool(refused))
        await asyncio.sleep(REFUSED_PAUSE)
        if refused:
            raise KafkaConnectionError(refused) from error  # aiokafka logs it
        raise
    broker.answer()
    return connection


def _note(what: str, *, refused: bool = False) -> None:
    if (attempts := _open_attempts()) is not None:
        attempts.found.append((what, refused))


def _trouble(error: BaseException, connection: ProbedConnection) -> str:
    where = f"broker {connection.host}:{connection.port}"
    closed = isinstance(error, (ConnectionResetError, ConnectionAbortedError, ssl.SSLError))
    if connection.was_open or closed:  # a listener with another security protocol closes it, too
        protocol = connection.protocol
        return f"{where} closed the connection: is STEADFAUST_SECURITY_PROTOCOL, {protocol}, right there?"
    return f"{where}: {error}"


def telling(bootstrap: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Wrap aiokafka's `bootstrap` so that it logs why no broker answers. The wrapper raises AccessRefused if
    a broker refused the client, and KafkaConnectionError if a later attempt may succeed.
    """

    async def bootstrap_or_tell(client: Any) -> None:
        opened = _Attempts()
        attempts = opened.found
        outer = _attempts.set(opened)
        addresses = str(client._bootstrap_servers)
        late = asyncio.get_running_loop().call_later(SAID_AFTER, _say, addresses, attempts)
        try:
            await bootstrap(client)
        except KafkaConnectionError as error:
            if refusals := [what for what, refused in attempts if refused]:
                raise AccessRefused("; ".join(refusals)) from error
            _say(addresses, attempts)
            raise KafkaConnectionError("; ".join(what for what, _ in attempts)) from error
        finally:
            late.cancel()
            opened.over = True
            _attempts.reset(outer)

    return bootstrap_or_tell


#: Seconds before the log says that no broker answers, and between such lines about the same brokers.
SAID_AFTER, SAID_EVERY = 4.0, 10.0
_said: dict[str, float] = {}


def _say(addresses: str, attempts: list[tuple[str, bool]]) -> None:
    """Log that no broker answers, with the result of each attempt, at most once per `SAID_EVERY`."""
    now = time.monotonic()
    if now < _said.get(addresses, 0.0):
        return
    _said[addresses] = now + SAID_EVERY
    log.warning(
        "brokers_do_not_answer",
        bootstrap=addresses,
        error="; ".join(dict.fromkeys(what for what, _ in attempts)) or "no answer yet",
        action="tried again; is STEADFAUST_BOOTSTRAP right, and do the brokers run?",
    )
