"""The network between workers and brokers, gateway, object store: a proxy that breaks it on demand."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import IO, Self, cast
from urllib.parse import urlsplit

import msgspec

from chaos.rig.links import LinkFaultKind
from chaos.rig.proxy import Begin, End, FaultAnswer, FaultCount, Lead, LinkRoute, Open, Request
from chaos.rig.waiting import ChaosFailed
from streams.local import Stack
from streams.local.loopback import HOST, reserve

GATEWAY, S3, POSTGRES = "gateway", "s3", "postgres"

_EDGE = "edge"

_ANSWER_WITHIN = 30.0
"""Seconds for the proxy to answer a request."""


class Injected:
    """A fault of the network."""

    def __init__(self, network: ClientNetwork, number: int) -> None:
        self._network = network
        self._number = number
        self._last: int | None = None

    @property
    def count(self) -> int:
        """What it did so far: connections cut or refused, chunks held or delayed, answers lost."""
        if self._last is not None:
            return self._last
        return self._network.ask(FaultCount(self._number)).count

    def end(self) -> None:
        """Undo it."""
        self._last = self._network.ask(End(self._number)).count


class ClientNetwork:
    """Proxies between each of the named clients, every broker, and gateway and S3 if the stack runs them.

    Faults are context managers, each yields what says how much it did, and several may be on at a time.

    Args:
        stack: a stack that was started with these names as listeners.
        names: of the clients, usually workers.

    Raises:
        ChaosFailed: from the `with`, when the stack has no such listeners or a port is taken; from anything
            else, when the proxy has ended.
    """

    def __init__(self, stack: Stack, names: Sequence[str]) -> None:
        self._stack = stack
        self._names = list(names)
        self._held = ExitStack()
        self._turn = threading.Lock()
        self._faults = 0
        self._brokers: dict[str, dict[int, LinkRoute]] = {}
        self._servers: dict[str, dict[str, LinkRoute]] = {GATEWAY: {}, S3: {}, POSTGRES: {}}

    def __enter__(self) -> Self:
        self._brokers = {name: self._ways_to_brokers(name) for name in self._names}
        with ExitStack() as held:
            for server in self._servers.keys() & self._stack.state.processes.keys():
                upstream = urlsplit(self._stack.url(server)).port or 80
                # The database edge is one client of PostgreSQL; workers use the others, each by its own way.
                for name in [_EDGE] if server == POSTGRES else self._names:
                    port = reserve()
                    held.callback(port.release)
                    self._servers[server][name] = LinkRoute(f"{name}/{server}", port.port, upstream)
            self._proxy = held.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "chaos.rig.proxy"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,  # lines as they come, and nothing left to flush to a proxy that has ended
                    start_new_session=True,  # Ctrl-C is the owner's: it ends workers before their network
                )
            )
            routes = [way for ways in self._brokers.values() for way in ways.values()]
            routes += [way for ways in self._servers.values() for way in ways.values()]
            self.ask(Open(routes))
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    # -- addresses ------------------------------------------------------------------------------------

    def bootstrap(self, name: str) -> str:
        """The brokers as this client reaches them: `host:port,...`."""
        return ",".join(f"{HOST}:{way.port}" for way in self._brokers[name].values())

    def gateway(self, name: str) -> str:
        """The URL of the gateway as this client reaches it."""
        return self._url(GATEWAY, name)

    def s3(self, name: str) -> str:
        """The URL of the object store as this client reaches it."""
        return self._url(S3, name)

    def postgres(self) -> str:
        """The URL of PostgreSQL as the processes of the database edge reach it."""
        url = urlsplit(self._stack.url(POSTGRES))
        user = url.netloc.rpartition("@")[0]
        return url._replace(netloc=f"{user}@{HOST}:{self._servers[POSTGRES][_EDGE].port}").geturl()

    # -- faults ---------------------------------------------------------------------------------------

    def cut(self, name: str, broker: int | None = None) -> AbstractContextManager[Injected]:
        """Close a client's connections to a broker, or to all, and refuse new ones."""
        return self._fault(LinkFaultKind.CUT, self._links(name, broker))

    def blackhole(self, name: str, broker: int | None = None) -> AbstractContextManager[Injected]:
        """Let nothing through and close nothing; what was sent arrives late, when this ends."""
        return self._fault(LinkFaultKind.BLACKHOLE, self._links(name, broker))

    def delay(self, name: str, seconds: float, broker: int | None = None) -> AbstractContextManager[Injected]:
        """Let everything take so many seconds longer each way."""
        return self._fault(LinkFaultKind.DELAY, self._links(name, broker), seconds)

    def gateway_down(self) -> AbstractContextManager[Injected]:
        """Close all connections to the gateway and refuse new ones."""
        return self._fault(LinkFaultKind.CUT, self._server_links(GATEWAY))

    def gateway_slow(self, seconds: float) -> AbstractContextManager[Injected]:
        """Let the gateway's answers come so many seconds later."""
        return self._fault(LinkFaultKind.DELAY, self._server_links(GATEWAY), seconds / 2)

    def gateway_loses_answers(self) -> AbstractContextManager[Injected]:
        """Let the gateway do each request, and close the connection instead of passing on its answer."""
        return self._fault(LinkFaultKind.LOSE_ANSWERS, self._server_links(GATEWAY))

    def postgres_silent(self) -> AbstractContextManager[Injected]:
        """Let nothing through between the database edge and PostgreSQL, and close nothing."""
        return self._fault(LinkFaultKind.BLACKHOLE, self._server_links(POSTGRES))

    def postgres_leads_to(self, port: int) -> int:
        """Let new connections of the database edge lead to this port, those that are open stay; returns how
        many still lead elsewhere.
        """
        return self.ask(Lead(self._servers[POSTGRES][_EDGE].name, port)).count

    def s3_cut(self) -> AbstractContextManager[Injected]:
        """Close all connections to the object store and refuse new ones."""
        return self._fault(LinkFaultKind.CUT, self._server_links(S3))

    def s3_slow(self, seconds: float) -> AbstractContextManager[Injected]:
        """Let each part of an exchange with the object store come so many seconds later."""
        return self._fault(LinkFaultKind.DELAY, self._server_links(S3), seconds / 2)

    @contextmanager
    def _fault(self, kind: LinkFaultKind, links: list[str], seconds: float = 0.0) -> Iterator[Injected]:
        with self._turn:
            self._faults += 1
            number = self._faults
        self.ask(Begin(number, kind, links, seconds))
        fault = Injected(self, number)
        try:
            yield fault
        finally:
            fault.end()

    # -- the proxy ------------------------------------------------------------------------------------

    def ask(self, request: Request) -> FaultAnswer:
        """Tell the proxy what to do; may be called from any thread."""
        requests, answers = cast("IO[bytes]", self._proxy.stdin), cast("IO[bytes]", self._proxy.stdout)
        with self._turn:
            try:
                requests.write(msgspec.json.encode(request) + b"\n")
                requests.flush()
            except BrokenPipeError:
                raise self._ended() from None
            if not select.select([answers], [], [], _ANSWER_WITHIN)[0]:
                raise ChaosFailed(f"the proxy has not done {request} within {_ANSWER_WITHIN:g} s")
            line = answers.readline()
        if not line:
            raise self._ended()
        answer = msgspec.json.decode(line, type=FaultAnswer)
        if answer.error:
            raise ChaosFailed(answer.error)
        return answer

    def _ended(self) -> ChaosFailed:
        return ChaosFailed(f"the proxy ended (status {self._proxy.wait()}): its standard error says why")

    def _ways_to_brokers(self, name: str) -> dict[int, LinkRoute]:
        ways = {}
        for broker in self._stack.state.brokers:
            if name not in broker.listeners:
                raise ChaosFailed(
                    f"broker {broker.id} has no listener {name}: start the stack with listeners={self._names}"
                )
            listener = broker.listeners[name]
            ways[broker.id] = LinkRoute(f"{name}/{broker.id}", listener.advertised, listener.port)
        return ways

    def _links(self, name: str, broker: int | None) -> list[str]:
        ways = self._brokers[name]
        return [ways[each].name for each in ([broker] if broker is not None else ways)]

    def _server_links(self, server: str) -> list[str]:
        return [way.name for way in self._servers[server].values()]

    def _url(self, server: str, name: str) -> str:
        return f"http://{HOST}:{self._servers[server][name].port}"
