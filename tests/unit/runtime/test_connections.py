"""A broker that hangs is noticed, and nobody waits for it; one that is only slow is left in peace."""

import asyncio
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from streams.kafka import connections
from streams.kafka.connections import ProbedConnection, connect
from tests.waiting import eventually_async

API_VERSIONS, METADATA = 18, 3


class Broker:
    """Answers a question about its versions, unless it hangs; any other question it never answers."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.connected = self.port = 0
        self.ahead = 0.0  # seconds of the clock
        self.pauses: list[float] = []  # of whoever is refused
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self.awake.set()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                api, _, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                await self.awake.wait()
                if api == API_VERSIONS:
                    body = struct.pack(">ihi", correlation, 0, 2)
                    body += struct.pack(">hhhhhh", API_VERSIONS, 0, 0, METADATA, 0, 1)
                    writer.write(struct.pack(">i", len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


#: Seconds of a clock that no test waits for: it makes the clock jump.
PATIENCE, CONNECT_TIMEOUT, FOR_EVER = 1e3, 1e6, 1e12


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    times = {"PATIENCE": PATIENCE, "CONNECT_TIMEOUT": CONNECT_TIMEOUT, "ATTEMPT_INTERVAL": CONNECT_TIMEOUT}
    for name, seconds in times.items():
        monkeypatch.setattr(connections, name, seconds)
    loop, broker = asyncio.get_running_loop(), Broker()

    async def sleep(seconds: float) -> None:
        broker.pauses.append(seconds)

    monkeypatch.setattr(connections, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + broker.ahead)
    await broker.start()
    yield broker
    await broker.stop()


async def opened(broker: Broker, **options: Any) -> ProbedConnection:
    return await connect("127.0.0.1", broker.port, request_timeout_ms=FOR_EVER, **options)


def ask(connection: ProbedConnection) -> asyncio.Task[Any]:
    return asyncio.ensure_future(connection.send(MetadataRequest([])))


async def times_out(broker: Broker, waiting: asyncio.Future[Any], error: type[Exception]) -> None:
    attempts = broker.connected
    await eventually_async(lambda: broker.connected > attempts, "an attempt to connect")
    broker.ahead += CONNECT_TIMEOUT
    with pytest.raises(error):
        await waiting


@pytest.mark.promise("broker-failure")
async def test_whoever_waits_for_a_broker_that_hangs_is_told(broker: Broker) -> None:
    closed: list[Any] = []
    one = await opened(broker, on_close=lambda _, reason: closed.append(reason))
    other = await opened(broker)
    broker.awake.clear()
    asked = ask(one)
    broker.ahead += PATIENCE
    await times_out(broker, asked, KafkaConnectionError)
    assert not other.connected()
    assert closed == [connections.CloseReason.CONNECTION_TIMEOUT]  # which makes a client look for leaders


async def test_a_request_that_is_held_back_is_left_alone(broker: Broker) -> None:
    connection = await opened(broker)
    held_back = ask(connection)

    def asked_twice() -> bool:
        broker.ahead += PATIENCE
        return broker.connected >= 3

    await eventually_async(asked_twice, "it is asked twice whether it is alive")
    assert not held_back.done()
    assert connection.connected()
    connection.close()
    with pytest.raises(KafkaConnectionError):
        await held_back


async def test_a_broker_that_hangs_is_tried_now_and_then(broker: Broker) -> None:
    broker.awake.clear()
    for attempts in (1, 2):
        await times_out(broker, asyncio.ensure_future(opened(broker)), TimeoutError)
        with pytest.raises(KafkaConnectionError, match="hangs"):
            await opened(broker)
        assert (broker.connected, len(broker.pauses)) == (attempts, attempts)
        broker.ahead += CONNECT_TIMEOUT
    broker.awake.set()
    for _ in range(2):  # the second one at once
        (await opened(broker)).close()


def test_a_reset_under_uvloop_is_an_error_of_the_connection() -> None:
    """https://github.com/aio-libs/aiokafka/issues/1038: a RuntimeError, which nobody took for what it was."""

    async def send_on_what_was_reset() -> None:
        broker = Broker()
        await broker.start()
        connection = await opened(broker)
        try:
            connection._writer.transport.abort()
            await asyncio.sleep(0)  # uvloop knows, aiokafka is told in its next turn
            with pytest.raises(KafkaConnectionError, match="is broken"):
                connection.send(MetadataRequest([]))
            assert not connection.connected()
        finally:
            await broker.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(send_on_what_was_reset())


async def test_a_broker_that_is_down_is_told_at_once(broker: Broker) -> None:
    await broker.stop()
    with pytest.raises(ConnectionRefusedError):
        await opened(broker)
    assert broker.pauses == [connections.REFUSED_PAUSE]
