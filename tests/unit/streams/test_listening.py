"""The port of a server that is started again, and who has it otherwise."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streams.system.listening import CannotListen, listen_at
from tests.waiting import BOUND


@contextmanager
def going_out() -> Iterator[tuple[int, socket.socket]]:
    """A connection that goes out from a port, as the system gives one to any client."""
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as client:
        client.connect(other.getsockname())
        yield client.getsockname()[1], client


async def test_a_port_of_an_outgoing_connection_is_waited_for() -> None:
    with going_out() as (port, client):
        waiting = asyncio.create_task(listen_at("127.0.0.1", port, patience=BOUND))
        await asyncio.wait([waiting], timeout=0.6)
        assert not waiting.done()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no minute after its end
        client.close()
        (bound,) = await waiting
    assert bound.getsockname()[1] == port
    bound.close()


async def test_a_port_that_stays_taken_says_how_to_choose_one() -> None:
    told = pytest.raises(CannotListen, match="outside the range of outgoing connections")
    with going_out() as (port, _), told:
        await listen_at("127.0.0.1", port, patience=0.0)


async def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen on 192\.0\.2\.1:0: "):
        await listen_at("192.0.2.1", 0)


async def test_a_name_with_two_addresses_has_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 0)) for n in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    found = await listen_at("both", 0)
    ports = {each.getsockname()[1] for each in found}
    for each in found:
        each.close()
    assert (len(found), len(ports)) == (2, 1)
