"""The proxy between plain sockets: what each fault does to connections, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from chaos.rig.links import Link, LinkFault, LinkFaultKind, Pipe
from chaos.rig.network import ClientNetwork
from chaos.rig.proxy import Lead
from chaos.rig.waiting import ChaosFailed
from streams.local import Stack
from streams.local.loopback import HOST, reserve
from streams.local.state import Listener, RunningBroker, RunningProcess, StackState
from tests.waiting import BOUND, eventually

pytestmark = [pytest.mark.slow("nine seconds of sockets"), pytest.mark.stack]

GLANCE = 0.2
"""Seconds in which something that must not happen does not."""


class End:
    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        own.settimeout(BOUND)

    def says(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receives(self, data: bytes) -> bool:
        received = b""
        while len(received) < len(data) and (chunk := self.socket.recv(1 << 16)):
            received += chunk
        return received == data

    def reaches(self, other: End, data: bytes) -> bool:
        """Whether what this end says arrives at the other."""
        self.says(data)
        return other.receives(data)

    def hears_nothing(self) -> bool:
        """Neither bytes nor a close, for a moment."""
        self.socket.settimeout(GLANCE)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(BOUND)
        return False

    def is_closed(self) -> bool:
        return self.socket.recv(1) == b""

    def is_reset(self) -> bool:
        try:
            self.socket.recv(1)
        except ConnectionResetError:
            return True
        return False


class Place:
    """A stack that is only a file: two brokers and a gateway that are sockets of the test."""

    def __init__(self, var: Path, held: ExitStack) -> None:
        self._held = held
        self.listening = {name: self._keep(socket.create_server((HOST, 0))) for name in ("1", "2", "gateway")}
        for each in self.listening.values():
            each.settimeout(BOUND)
        self.stack = Stack(var)
        var.mkdir(exist_ok=True)
        self.stack.var.write(self._state())

    def _state(self) -> StackState:
        return StackState(
            supervisor_pid=1,
            supervisor_started=0.0,
            ready=True,
            started_at="2026-01-01T00:00:00+00:00",
            cluster_id="id",
            bootstrap="",
            brokers=[
                RunningBroker(n, 1, 0.0, 1, "log", {name: self._listener(str(n)) for name in ("ada", "bob")})
                for n in (1, 2)
            ],
            processes={"gateway": RunningProcess(1, 0.0, f"http://{HOST}:{self.port('gateway')}", "log")},
        )

    def _listener(self, broker: str) -> Listener:
        free = reserve()
        self._held.callback(free.release)
        return Listener(self.port(broker), free.port)

    def _keep(self, own: socket.socket) -> socket.socket:
        return self._held.enter_context(own)

    def port(self, name: str) -> int:
        return int(self.listening[name].getsockname()[1])

    def client(self, address: str) -> End:
        host, _, port = address.removeprefix("http://").partition(":")
        return End(self._keep(socket.create_connection((host, int(port)), BOUND)))

    def is_refused(self, address: str) -> bool:
        """Whether a new connection is reset, before or after its client knows that it has one."""
        try:
            return self.client(address).is_reset()
        except ConnectionResetError:
            return True

    def accepted(self, name: str) -> End:
        own, _ = self.listening[name].accept()
        return End(self._keep(own))

    def pair(self, address: str, name: str) -> tuple[End, End]:
        return self.client(address), self.accepted(name)

    def joined(self, address: str, name: str) -> tuple[End, End]:
        """A pair of which the proxy has passed something on: it knows of both ends."""
        client, server = self.pair(address, name)
        assert client.reaches(server, b"here")
        return client, server


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as held:
        yield Place(tmp_path / "var", held)


@pytest.fixture
def network(place: Place) -> Iterator[ClientNetwork]:
    with ClientNetwork(place.stack, ["ada", "bob"]) as network:
        yield network


Pair = tuple[End, End]


def way(network: ClientNetwork, name: str = "ada", broker: int = 1) -> str:
    return network.bootstrap(name).split(",")[broker - 1]


@pytest.fixture
def pair(place: Place, network: ClientNetwork) -> Pair:
    return place.pair(way(network), "1")


def test_a_client_is_led_to_the_advertised_ports(place: Place, network: ClientNetwork) -> None:
    advertised = [broker.listeners["ada"].advertised for broker in place.stack.state.brokers]
    assert network.bootstrap("ada") == ",".join(f"{HOST}:{port}" for port in advertised)
    assert network.bootstrap("ada") != network.bootstrap("bob")


@pytest.mark.parametrize("broker", [1, 2])
def test_bytes_pass_both_ways_whole_and_in_order(place: Place, network: ClientNetwork, broker: int) -> None:
    client, server = place.pair(way(network, "ada", broker), str(broker))
    payload = os.urandom(3_000_000)
    with ThreadPoolExecutor() as aside:
        expected_chunks = aside.submit(client.says, payload)
        assert server.receives(payload)
        expected_chunks.result(BOUND)
    assert server.reaches(client, b"done")


def test_what_was_said_before_hanging_up_arrives(place: Place, network: ClientNetwork, pair: Pair) -> None:
    client, server = pair
    client.says(b"last words")
    client.socket.close()
    assert server.receives(b"last words")
    assert server.is_closed()
    client, server = place.pair(way(network), "1")
    server.socket.close()
    assert client.is_closed()


def test_a_client_of_nobody_is_hung_up_on(place: Place, network: ClientNetwork) -> None:
    place.listening["1"].close()
    assert place.client(way(network)).is_closed()


def test_a_sender_waits_for_a_receiver_that_does_not_read(pair: Pair) -> None:
    client, server = pair
    client.socket.settimeout(GLANCE)
    chunk, sent = bytes(1 << 20), 0
    with suppress(TimeoutError):
        while sent < 200 << 20:
            sent += client.socket.send(chunk)
    assert 0 < sent < 50 << 20
    assert server.receives(bytes(sent))


def test_a_cut_resets_open_connections_and_refuses_new_ones(place: Place, network: ClientNetwork) -> None:
    client, server = place.joined(way(network), "1")
    with network.cut("ada") as fault:
        assert client.is_reset()
        assert server.is_reset()
        assert fault.count == 1
        assert place.is_refused(way(network))
        assert place.is_refused(way(network, broker=2))
        assert fault.count == 3
    client, server = place.pair(way(network), "1")
    assert client.reaches(server, b"again")
    assert fault.count == 3


def test_a_cut_spares_other_clients_brokers_and_the_gateway(place: Place, network: ClientNetwork) -> None:
    spared = [
        place.pair(way(network, broker=2), "2"),
        place.pair(way(network, "bob"), "1"),
        place.pair(network.gateway("ada"), "gateway"),
    ]
    with network.cut("ada", broker=1) as fault:
        for client, server in spared:
            assert client.reaches(server, b"still")
            assert server.reaches(client, b"here")
        assert fault.count == 0


def test_what_a_blackhole_swallowed_arrives_when_it_ends(network: ClientNetwork, pair: Pair) -> None:
    client, server = pair
    with network.blackhole("ada") as fault:
        client.says(b"request")
        assert server.hears_nothing()
        server.says(b"push")
        assert client.hears_nothing()
        eventually(lambda: fault.count == 2, "both are held back")
    assert server.receives(b"request")
    assert client.receives(b"push")


def test_a_close_does_not_get_through_a_blackhole(network: ClientNetwork, pair: Pair) -> None:
    client, server = pair
    with network.blackhole("ada", broker=1):
        client.says(b"bye")
        client.socket.close()
        assert server.hears_nothing()
    assert server.receives(b"bye")
    assert server.is_closed()


def test_a_connection_opened_in_a_blackhole_works_later(place: Place, network: ClientNetwork) -> None:
    with network.blackhole("ada"):
        client = place.client(way(network))
        client.says(b"anyone?")
        assert client.hears_nothing()
    server = place.accepted("1")
    assert server.receives(b"anyone?")
    assert server.reaches(client, b"yes")


async def test_a_delay_holds_each_chunk_for_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, received = 100.0, list[bytes]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    link = Link(0, 0)
    link.begin(LinkFault(LinkFaultKind.DELAY, 0.25))
    pipe = Pipe(link)
    pipe.target = SimpleNamespace(write=received.append, is_closing=lambda: False)
    pipe.feed(b"first")
    now += 0.125
    pipe.feed(b"second")
    for later, expected_chunks in ((0.0, []), (0.125, [b"first"]), (0.125, [b"first", b"second"])):
        now += later
        pipe.drain()
        assert received == expected_chunks


def test_a_delay_keeps_the_order_of_later_bytes(network: ClientNetwork, pair: Pair) -> None:
    client, server = pair
    expected = b""
    with network.delay("ada", 0.2) as fault:
        for n in range(20):
            client.says(b"%d " % n)
            expected += b"%d " % n
        eventually(lambda: fault.count > 0, "the fault has happened")
    client.says(b"last")
    assert server.receives(expected + b"last")


def test_a_connection_closes_after_what_was_delayed(network: ClientNetwork, pair: Pair) -> None:
    client, server = pair
    with network.delay("ada", 0.1):
        client.says(b"late")
        client.socket.close()
        assert server.receives(b"late")
        assert server.is_closed()


def test_faults_end_one_by_one(place: Place, network: ClientNetwork, pair: Pair) -> None:
    client, server = pair
    with network.blackhole("ada"):
        with network.delay("ada", 0.05), network.blackhole("ada", broker=1):
            client.says(b"word")
            assert server.hears_nothing()
        assert server.hears_nothing()
        with network.cut("ada"):
            assert client.is_reset()
    client, server = place.pair(way(network), "1")
    assert client.reaches(server, b"whole")


def test_a_lost_answer_is_to_a_whole_request(place: Place, network: ClientNetwork) -> None:
    client, server = place.pair(network.gateway("ada"), "gateway")
    with network.gateway_loses_answers() as fault:
        assert client.reaches(server, b"POST /charges")
        assert fault.count == 0
        server.says(b"201")
        assert client.is_reset()
        assert fault.count == 1
    client, server = place.pair(network.gateway("ada"), "gateway")
    assert server.reaches(client, b"200")


def test_a_gateway_that_is_down_is_so_for_everybody(place: Place, network: ClientNetwork) -> None:
    client, _ = place.joined(network.gateway("ada"), "gateway")
    with network.gateway_down() as fault:
        assert client.is_reset()
        assert place.is_refused(network.gateway("bob"))
        assert fault.count == 2
    place.pair(network.gateway("bob"), "gateway")


def test_new_connections_lead_elsewhere_and_open_ones_stay(
    place: Place, network: ClientNetwork, pair: Pair
) -> None:
    client, server = pair
    assert client.reaches(server, b"before")
    lead = Lead("ada/1", place.port("2"))
    assert network.ask(lead).count == 1
    place.joined(way(network), "2")
    assert client.reaches(server, b"after")
    client.socket.close()
    assert server.is_closed()
    eventually(lambda: network.ask(lead).count == 0, "no connection leads to the former any more")


def test_the_proxy_ends_when_its_owner_is_killed(place: Place) -> None:
    program = (
        "import signal, sys, pathlib, psutil\n"
        "from chaos.rig.network import ClientNetwork\n"
        "from streams.local import Stack\n"
        "with ClientNetwork(Stack(pathlib.Path(sys.argv[1])), ['ada']):\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-c", program, str(place.stack.var.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        proxy = psutil.Process(int(owner.stdout.readline()))
        assert proxy.is_running()
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not proxy.is_running() or proxy.status() == psutil.STATUS_ZOMBIE, "it ends")


def test_whoever_asks_an_ended_proxy_has_an_error(place: Place) -> None:
    with ClientNetwork(place.stack, ["ada"]) as network:
        # The process started last is the proxy's; earlier tests may have left zombies beside it.
        proxy = max(psutil.Process().children(), key=lambda child: child.create_time())
        proxy.kill()
        with pytest.raises(ChaosFailed, match=r"the proxy ended \(status -9\)"), network.cut("ada"):
            pytest.fail("it was cut")


def test_a_stack_without_the_listener_is_told_how_to_start(place: Place) -> None:
    advice = r"broker 1 has no listener eve: start the stack with listeners=\['eve'\]"
    with pytest.raises(ChaosFailed, match=advice), ClientNetwork(place.stack, ["eve"]):
        pytest.fail("it started")
