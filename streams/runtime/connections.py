"""Connections to brokers that notice when a broker hangs.

aiokafka has one bound for every request, `request_timeout_ms`. It must be long, because a broker may hold an
answer back with reason: a join until all members have joined, a write until its replicas have it. So long
also takes each request of each client to a broker that is frozen or cut off, one after the other, while the
cluster has elected another one long ago.

Here a broker that has been silent for `PATIENCE` with a request open is asked for its versions on a new
connection, which every broker answers at once. One that does not hangs: all connections of this event loop
to it are closed, so that their clients look for its successor at once, and new ones are refused but for an
attempt now and then.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError

#: How long a broker may be silent with a request open until it is asked whether it is alive, in seconds.
PATIENCE = 2.0
#: Bound on opening a connection, in seconds. While one hangs, others wait: aiokafka opens one at a time.
CONNECT_TIMEOUT = 3.0
#: Between attempts to connect to a broker that hangs, and the bound on each, in seconds.
ATTEMPT_INTERVAL = 1.0
#: Wait before an attempt is refused, in seconds: clients ask again and again for a broker that is down.
REFUSED_PAUSE = 0.05


class _Broker:
    """What the clients of one event loop know of a broker."""

    def __init__(self) -> None:
        self.connections: WeakSet[Connection] = WeakSet()
        self.hangs = False
        self.asking: asyncio.Task[None] | None = None
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
        """It hangs: whoever waits for it is told so."""
        self.hangs = True
        self._attempt_after = now + ATTEMPT_INTERVAL
        for connection in list(self.connections):
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)


_brokers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], _Broker]] = WeakKeyDictionary()


class Connection(AIOKafkaConnection):
    """A connection that asks whether its broker is alive when nothing comes."""

    def __init__(self, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._options = options
        self._broker = _brokers.setdefault(self._loop, {}).setdefault((host, port), _Broker())
        self._heard = 0.0
        self._doubt: asyncio.TimerHandle | None = None

    async def connect(self) -> Any:
        """Open the connection. Raises OSError, TimeoutError or KafkaError."""
        opened = await super().connect()
        self._broker.connections.add(self)
        return opened

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: FBT001, FBT002 - as overridden
        """Send a request; returns the wait for its answer. Raises KafkaConnectionError when it is broken."""
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
        super()._handle_frame(frame)

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
            asked = await _open(AIOKafkaConnection(self.host, self.port, **options), CONNECT_TIMEOUT)
        except (OSError, KafkaError):
            self._broker.give_up(self._loop.time())
        else:
            asked.close()

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._broker.asking = None
        if not asking.cancelled():
            asking.result()


async def _open(connection: Any, bound: float) -> Any:
    async with asyncio.timeout(bound):
        await connection.connect()
    return connection


async def connect(host: str, port: int, **options: Any) -> Connection:
    """Open a connection. Raises OSError, TimeoutError or KafkaError."""
    connection = Connection(host, port, **options)
    broker, loop = connection._broker, asyncio.get_running_loop()
    if broker.refuses(loop.time()):
        await asyncio.sleep(REFUSED_PAUSE)
        raise KafkaConnectionError(f"the broker at {host}:{port} hangs: it has not answered for seconds")
    bound = ATTEMPT_INTERVAL if broker.hangs else CONNECT_TIMEOUT
    try:
        await _open(connection, bound)
    except TimeoutError:
        broker.give_up(loop.time())
        raise
    except (OSError, KafkaError):
        broker.hangs = False  # it is down, or refuses: neither takes anybody's time
        await asyncio.sleep(REFUSED_PAUSE)
        raise
    broker.hangs = False
    return connection
