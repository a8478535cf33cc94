"""Connections to brokers that notice when a broker hangs.

aiokafka has one bound for every request, `request_timeout_ms`. It must be long, because a broker may hold an
answer back with reason: a join until all members have joined, a write until its replicas have it. So long
also takes each request of each client to a broker that is frozen or cut off, one after the other, while the
cluster has elected another one long ago.

Here a broker that has been silent for `PATIENCE` with a request open gets a request for its versions on a new
connection, which every broker answers at once. One that does not hangs: all connections of this event loop
to it are closed, so that their clients look for its successor at once, and new ones are refused but for an
attempt now and then.

A client that finds no broker at all says why. It gives up at once where one of them does not let it in, or
has a certificate that is not right: that does not pass.
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
#: Bound on opening a connection, in seconds. While one hangs, others wait: aiokafka opens one at a time.
CONNECT_TIMEOUT = 3.0
#: Between attempts to connect to a broker that hangs, and the bound on each, in seconds.
ATTEMPT_INTERVAL = 1.0
#: A broker that is silent for so long is a warning; one that restarts is found anew sooner, in seconds.
WARNED_AFTER = 2.0
#: A broker without an attempt for so many seconds is not reported as silent: it may be gone for good.
FORGOTTEN_AFTER = 30.0
#: Wait before an attempt is refused, in seconds: clients ask again and again for a broker that is down.
REFUSED_PAUSE = 0.05


class _Broker:
    """The reachability of a broker, for the clients of one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: WeakSet[ProbedConnection] = WeakSet()
        self.hangs = False
        self.asking: asyncio.Task[None] | None = None
        #: Since when it has not answered, and when that was seen last, monotonic seconds; 0: it answers.
        self.silent_since = self.silent_at = 0.0
        self._attempt_after = 0.0

    def refuses(self, now: float) -> bool:
        """Whether not even to try; one attempt in an interval is let through."""
        if not self.hangs:
            return False
        if now < self._attempt_after:
            return True
        self._attempt_after = now + ATTEMPT_INTERVAL  # by when this one has ended
        return False

    def give_up(self, now: float) -> None:
        """Record that the broker hangs, and fail the requests that wait for it."""
        self.hangs = True
        self._attempt_after = now + ATTEMPT_INTERVAL
        self.fail(f"broker {self.address} does not answer")
        for connection in list(self.connections):
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)

    def fail(self, what: str) -> None:
        """Record that the broker was not reached. Where clients run already, that is logged once it hangs, or
        is down for long; a client that starts says it itself, of all brokers at once.
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
    """The brokers that clients of this process fail to reach, by address, and for how many seconds."""
    now = time.monotonic()
    found: dict[str, float] = {}
    for brokers in list(_brokers.values()):
        for broker in list(brokers.values()):
            if broker.silent_since and now - broker.silent_at <= FORGOTTEN_AFTER:
                found[broker.address] = max(now - broker.silent_since, found.get(broker.address, 0.0))
    return found


def silent_brokers() -> list[str]:
    """A warning, if there are brokers that clients of this process have failed to reach for seconds."""
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
    """Failed attempts of a client to find a first broker, and whether that passes
    not. `over`: it has found one, or given up; tasks that it has begun meanwhile still see this.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, bool]] = []
        self.over = False


_attempts: ContextVar[_Attempts | None] = ContextVar("attempts", default=None)


def _open_attempts() -> _Attempts | None:
    attempts = _attempts.get()
    return None if attempts is None or attempts.over else attempts


class ProbedConnection(AIOKafkaConnection):
    """A connection that asks whether its broker is alive when nothing comes."""

    def __init__(self, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._options = options
        self.protocol: str = options.get("security_protocol", "PLAINTEXT")
        #: Whether the broker's port was reached, whatever came then.
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
            # (aiokafka #1038): the membership would end of it, and with it the worker.
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"the connection to {self.host}:{self.port} is broken")
        answer = super().send(request, expect_response)
        if self._doubt is None:
            self._doubt = self._loop.call_later(PATIENCE, self._look)
        return answer

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Any:
        """Close it, failing what is open with a KafkaConnectionError."""
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
            # A request that waits longer than its bound is sent again, on a new connection.
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
    """For how long the broker reads the connection no further, as an answer says that nobody gave up."""
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
        broker.hangs = False  # it is down, or refuses: neither takes anybody's time
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
    if connection.was_open or closed:  # this is how a listener looks that speaks otherwise, too
        protocol = connection.protocol
        return f"{where} closed the connection: is STEADFAUST_SECURITY_PROTOCOL, {protocol}, right there?"
    return f"{where}: {error}"


def telling(bootstrap: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Connect a client of aiokafka to the first broker that answers, and log why none does. Raises
    AccessRefused, or KafkaConnectionError when that may pass.
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


#: Seconds until the log says that no broker answers, and between such lines about the same brokers.
SAID_AFTER, SAID_EVERY = 4.0, 10.0
_said: dict[str, float] = {}


def _say(addresses: str, attempts: list[tuple[str, bool]]) -> None:
    """Say in the log that no broker answers, and what came of each attempt, once in a while."""
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
