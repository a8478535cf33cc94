"""A broker that hangs is noticed, and nobody waits for it; one that is only slow is left in peace."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from streams.runtime import connections
from streams.runtime.connections import Connection, connect
from tests.waiting import eventually_async

pytestmark = pytest.mark.slow("two seconds of sockets")

API_VERSIONS, METADATA = 18, 3


class Broker:
    """Answers a question about its versions, unless it hangs; any other question it never answers."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.connected = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

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


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, int]]:
    for name in ("PATIENCE", "CONNECT_TIMEOUT", "ATTEMPT_INTERVAL"):
        monkeypatch.setattr(connections, name, 0.2)
    broker = Broker()
    port = await broker.start()
    yield broker, port
    await broker.stop()


async def opened(port: int, **options: Any) -> Connection:
    return await connect("127.0.0.1", port, request_timeout_ms=20_000, **options)


def ask(connection: Connection) -> asyncio.Task[Any]:
    return asyncio.ensure_future(connection.send(MetadataRequest([])))


async def lets_in(port: int) -> bool:
    try:
        (await opened(port)).close()
    except (KafkaConnectionError, TimeoutError):
        return False
    return True


async def test_whoever_waits_for_a_broker_that_hangs_is_told(
    broker: tuple[Broker, int],
) -> None:
    hanging, port = broker
    closed: list[Any] = []
    one = await opened(port, on_close=lambda _, reason: closed.append(reason))
    other = await opened(port)
    hanging.awake.clear()
    with pytest.raises(KafkaConnectionError):
        await ask(one)
    assert not other.connected()
    assert closed == [connections.CloseReason.CONNECTION_TIMEOUT]  # which makes a client look for leaders


async def test_a_request_that_is_held_back_is_left_alone(broker: tuple[Broker, int]) -> None:
    healthy, port = broker
    connection = await opened(port)
    held_back = ask(connection)
    await eventually_async(lambda: healthy.connected >= 3, "it is asked twice whether it is alive")
    assert not held_back.done()
    assert connection.connected()
    connection.close()
    with pytest.raises(KafkaConnectionError):
        await held_back


async def test_a_broker_that_hangs_is_tried_now_and_then(broker: tuple[Broker, int]) -> None:
    hanging, port = broker
    hanging.awake.clear()
    with pytest.raises(TimeoutError):
        await opened(port)
    attempts = hanging.connected
    with pytest.raises(KafkaConnectionError, match="hangs"):
        await opened(port)
    assert hanging.connected == attempts

    async def attempted() -> bool:
        assert not await lets_in(port)
        return hanging.connected > attempts

    await eventually_async(attempted, "another attempt", every=0)
    assert hanging.connected == attempts + 1
    hanging.awake.set()
    await eventually_async(lambda: lets_in(port), "the broker answers", every=0)
    (await opened(port)).close()  # and at once


def test_a_reset_under_uvloop_is_an_error_of_the_connection() -> None:
    """https://github.com/aio-libs/aiokafka/issues/1038: a RuntimeError, which nobody took for what it was."""

    async def send_on_what_was_reset() -> None:
        broker = Broker()
        connection = await opened(await broker.start())
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


async def test_a_broker_that_is_down_is_told_at_once(broker: tuple[Broker, int]) -> None:
    down, port = broker
    await down.stop()
    with pytest.raises(ConnectionRefusedError):
        await opened(port)
