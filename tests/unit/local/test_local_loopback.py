import asyncio
import socket
import struct

import pytest

from streams.local.errors import PortTaken
from streams.local.loopback import HOST, http_answers, kafka_answers, reserve


def test_a_reserved_port_is_bound_by_its_user_alone() -> None:
    reserved = reserve()
    with socket.create_server((HOST, reserved.port)), pytest.raises(PortTaken, match=f"port {reserved.port}"):
        reserve(reserved.port)
    reserved.release()


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    reserved = reserve()
    reserved.release()
    assert 20_000 <= reserved.port < 32_000


@pytest.mark.parametrize(("seen", "wanted", "ready"), [(1, 1, True), (2, 3, False), (3, 3, True)])
async def test_a_broker_answers_once_it_sees_all_brokers(seen: int, wanted: int, ready: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        key, version, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
        assert (key, version) == (3, 1)
        writer.write(struct.pack(">iii", 8, correlation, seen))
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await kafka_answers(port, wanted) is ready


async def test_a_closed_port_does_not_answer() -> None:
    reserved = reserve()
    try:
        assert not await kafka_answers(reserved.port, 1)
        assert not await http_answers(reserved.port, "/health")
    finally:
        reserved.release()


@pytest.mark.parametrize(("status", "ready"), [(b"200 OK", True), (b"503 Not yet", False)])
async def test_a_companion_answers_with_status_200(status: bytes, ready: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /health ")
        writer.write(b"HTTP/1.0 " + status + b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        assert await http_answers(server.sockets[0].getsockname()[1], "/health") is ready
