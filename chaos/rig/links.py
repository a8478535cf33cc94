"""TCP links that fail on demand: what a client sends to one port is passed on to another, or not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from enum import StrEnum
from typing import cast

import msgspec

from streams.local.loopback import HOST

_MOST_HELD = 4 << 20
"""Bytes that one direction of a connection keeps before its sender has to wait, as in a full TCP window."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds: the connection ends with a reset, as when its path is gone."""


class LinkFaultKind(StrEnum):
    """What can be wrong with a link.

    CUT resets its connections and refuses new ones. BLACKHOLE lets nothing through, closes included; what
    was sent arrives when it ends, as TCP would send it again. DELAY holds each chunk, in order. LOSE_ANSWERS
    passes requests on whole, and resets a connection when its answer arrives.
    """

    CUT = "cut"
    BLACKHOLE = "blackhole"
    DELAY = "delay"
    LOSE_ANSWERS = "lose_answers"


class LinkFault(msgspec.Struct, eq=False):
    """A fault of one or more links, several of which may be on at a time.

    Attributes:
        seconds: the delay each way.
        count: connections cut or refused, chunks held or delayed, answers lost.
    """

    kind: LinkFaultKind
    seconds: float = 0.0
    count: int = 0


class Link:
    """A listening port, what is behind it, and what is wrong with it now."""

    def __init__(self, port: int, upstream: int) -> None:
        self.port = port
        self.upstream = upstream
        self.connections: set[ProxiedConnection] = set()
        self._faults: list[LinkFault] = []
        self._listening: asyncio.Server | None = None
        self._note()

    async def listen(self) -> None:
        """Take connections from now on. Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: ProxiedConnection(self).client, HOST, self.port)

    def close(self) -> None:
        """Take no more connections, and end those that are there."""
        if self._listening is not None:
            self._listening.close()
        for connection in list(self.connections):
            connection.reset()

    def lead(self, upstream: int) -> int:
        """Let new connections lead to this port; returns how many still lead elsewhere."""
        self.upstream = upstream
        return sum(connection.upstream != upstream for connection in self.connections)

    def begin(self, fault: LinkFault) -> None:
        """Let it go wrong."""
        self._faults.append(fault)
        self._note()
        if fault.kind is LinkFaultKind.CUT:
            for connection in list(self.connections):
                self.reset(connection, fault)

    def end(self, fault: LinkFault) -> None:
        """Mend it: what was held goes on its way."""
        self._faults.remove(fault)
        self._note()
        for connection in list(self.connections):
            connection.up.drain()
            connection.down.drain()

    def reset(self, connection: ProxiedConnection, fault: LinkFault) -> None:
        """End a connection because of a fault."""
        fault.count += 1
        connection.reset()

    def counts_chunk(self) -> None:
        """A chunk is held or delayed."""
        for fault in (*self.delays, *filter(None, [self.hole])):
            fault.count += 1

    def _note(self) -> None:
        """What the pipes ask for each chunk, in fields."""
        self.cut, self.hole, self.lossy = map(
            self._active, (LinkFaultKind.CUT, LinkFaultKind.BLACKHOLE, LinkFaultKind.LOSE_ANSWERS)
        )
        self.delays = [fault for fault in self._faults if fault.kind is LinkFaultKind.DELAY]
        self.delay = sum(fault.seconds for fault in self.delays)
        self.clear = self.hole is None and not self.delays

    def _active(self, kind: LinkFaultKind) -> LinkFault | None:
        return next((fault for fault in self._faults if fault.kind is kind), None)


class Pipe:
    """One direction of a connection: bytes from its source to its target, then a close."""

    def __init__(self, link: Link) -> None:
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None
        self.target_full = False
        self._link = link
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, data: bytes | None) -> None:
        """Pass on the source's bytes, None when it has hung up."""
        target = self.target
        if data is not None and self._link.clear and not self._queue and target is not None:
            if not target.is_closing():
                target.write(data)
            return
        if data is not None:
            self._link.counts_chunk()
        last = self._queue[-1][0] if self._queue else 0.0
        due = asyncio.get_running_loop().time() + self._link.delay
        self._queue.append((max(last, due), data))
        self._size += len(data or b"")
        self.drain()

    def drain(self) -> None:
        """Write what is due, unless it is held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.target is not None and self._link.hole is None:
            loop = asyncio.get_running_loop()
            while self._queue and self._queue[0][0] <= loop.time():
                self._write(self.target, self._queue.popleft()[1])
            if self._queue:
                self._timer = loop.call_at(self._queue[0][0], self.drain)
        self.pace()

    def pace(self) -> None:
        """Let the source wait while the target cannot take more, or too much is held."""
        if self.source is None or self.source.is_closing():
            return
        if self.target_full or self._size > _MOST_HELD:
            self.source.pause_reading()
        else:
            self.source.resume_reading()

    def _write(self, target: asyncio.Transport, data: bytes | None) -> None:
        self._size -= len(data or b"")
        if target.is_closing():
            return
        if data is None:
            target.close()
        else:
            target.write(data)


class ProxiedConnection:
    """A client's connection and ours to what is behind the link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.upstream = link.upstream
        self.up, self.down = Pipe(link), Pipe(link)
        self.client = _Client(self, out=self.up, back=self.down)
        self._server = _LinkServer(self, out=self.down, back=self.up)
        self._connecting: asyncio.Task[None] | None = None
        self._sides = 2
        self.broken = False

    def opened(self) -> None:
        """The client is here: go on to what is behind the link, or refuse it."""
        if self.link.cut is not None:
            self.link.reset(self, self.link.cut)
            return
        self.link.connections.add(self)
        self._connecting = asyncio.create_task(self._connect())

    def reset(self) -> None:
        """End it at once and both ways; what was held is lost."""
        self.broken = True
        self.link.connections.discard(self)
        for transport in (self.up.source, self.up.target):
            if transport is not None:
                _reset(transport)

    def left(self) -> None:
        """One side has hung up; the connection is forgotten when both have."""
        self._sides -= 1
        if self._sides == 0:
            self.link.connections.discard(self)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._server, HOST, self.upstream)
        except OSError:  # nothing listens there: the client's connection is closed, as a proxy can
            self.down.feed(None)
            self.left()


class _Side(asyncio.Protocol):
    """One of a connection's two sockets."""

    def __init__(self, connection: ProxiedConnection, *, out: Pipe, back: Pipe) -> None:
        self._connection = connection
        self._out = out
        self._back = back

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out.source = self._back.target = cast("asyncio.Transport", transport)
        self._back.drain()

    def data_received(self, data: bytes) -> None:
        self._out.feed(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._out.feed(None)
        self._connection.left()

    def pause_writing(self) -> None:
        self._back.target_full = True
        self._back.pace()

    def resume_writing(self) -> None:
        self._back.target_full = False
        self._back.pace()


class _Client(_Side):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connection.opened()


class _LinkServer(_Side):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connection.broken:  # while we connected: what the client had sent must not arrive
            transport.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if (lossy := self._connection.link.lossy) is not None:
            self._connection.link.reset(self._connection, lossy)
            return
        super().data_received(data)


def _reset(transport: asyncio.Transport) -> None:
    if transport.is_closing():
        return
    ours: socket.socket = transport.get_extra_info("socket")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
