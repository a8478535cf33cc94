"""`python -m chaos.rig.proxy`: a TCP proxy that breaks links by requests, until its standard input closes.

Requests are JSON, one a line, on standard input; each has one answer on standard output.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TypeAlias

import msgspec
import uvloop

from chaos.rig.links import Link, LinkFault, LinkFaultKind


class LinkRoute(msgspec.Struct, frozen=True):
    """A link by name: where it listens, and the port that it leads to."""

    name: str
    port: int
    upstream: int


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Listen on these routes."""

    routes: list[LinkRoute]


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Begin a fault of these links; `id` names it from now on, `seconds` is a delay's."""

    id: int
    kind: LinkFaultKind
    links: list[str]
    seconds: float = 0.0


class End(msgspec.Struct, frozen=True, tag="end"):
    """End a fault; answered with its last count."""

    id: int


class FaultCount(msgspec.Struct, frozen=True, tag="count"):
    """Ask what a fault has done so far."""

    id: int


class Lead(msgspec.Struct, frozen=True, tag="lead"):
    """Let new connections of a link lead to another port; answered with how many still lead elsewhere."""

    link: str
    upstream: int


Request: TypeAlias = Open | Begin | End | FaultCount | Lead


class FaultAnswer(msgspec.Struct, frozen=True):
    """The count of a fault, or why a request failed."""

    count: int = 0
    error: str = ""


class Proxy:
    """All links and the faults that are on."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._faults: dict[int, tuple[LinkFault, list[Link]]] = {}

    async def do(self, request: Request) -> FaultAnswer:
        """Do a request."""
        match request:
            case Open(routes):
                return await self._open(routes)
            case Begin(id, kind, names, seconds):
                fault, links = LinkFault(kind, seconds), [self._links[name] for name in names]
                self._faults[id] = fault, links
                for link in links:
                    link.begin(fault)
            case End(id):
                fault, links = self._faults.pop(id)
                for link in links:
                    link.end(fault)
            case FaultCount(id):
                fault, _ = self._faults[id]
            case Lead(name, upstream):
                return FaultAnswer(self._links[name].lead(upstream))
        return FaultAnswer(fault.count)

    async def _open(self, routes: list[LinkRoute]) -> FaultAnswer:
        for route in routes:
            link = self._links[route.name] = Link(route.port, route.upstream)
            try:
                await link.listen()
            except OSError as error:
                return FaultAnswer(error=f"{route.name} cannot listen on port {route.port}: {error.strerror}")
        return FaultAnswer()


async def serve() -> None:
    """Answer requests until there are no more."""
    requests = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), sys.stdin
    )
    proxy = Proxy()
    read = msgspec.json.Decoder(Request).decode
    while line := await requests.readline():
        answer = await proxy.do(read(line))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(serve())
