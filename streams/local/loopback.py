"""Ports and health on the loopback interface."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import struct
from dataclasses import dataclass

from streams.local.errors import PortTaken
from streams.system.listening import who_listens

HOST = "127.0.0.1"

_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Linux gives 32768-60999 to outgoing connections: one could take a port while its broker restarts."""

_METADATA_REQUEST = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
"""Metadata v1, correlation 1, no client id, no topics: answered with the list of brokers alone."""

_POSTGRES_PROTOCOL = 3 << 16
_AUTHENTICATION_OK = b"R" + struct.pack(">ii", 8, 0)
_TERMINATE = b"X" + struct.pack(">i", 4)


@dataclass(frozen=True)
class Reserved:
    """A port that stays ours: a bound socket that never listens holds it, and lets its user bind it too."""

    port: int
    holder: socket.socket

    def release(self) -> None:
        """Let go of the port."""
        self.holder.close()


def reserve(port: int | None = None) -> Reserved:
    """Reserve this port, or any free one.

    Raises:
        PortTaken: the wanted port belongs to another process, or no port is free.
    """
    candidates = [port] if port is not None else random.sample(_BELOW_EPHEMERAL, 200)
    for candidate in candidates:
        holder = socket.socket()
        # Linux lets two sockets share an address while neither listens and both say so.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if port is None:
                _refuse_shared(candidate)
            holder.bind((HOST, candidate))
            return Reserved(candidate, holder)
        except OSError as error:
            holder.close()
            if error.errno != errno.EADDRINUSE:
                raise
    if port is not None:
        holder_of = who_listens(port) or "another program"
        raise PortTaken(
            f"port {port} on {HOST} is taken by {holder_of}: choose another --port, or none to have one found"
        )
    first, last = _BELOW_EPHEMERAL[0], _BELOW_EPHEMERAL[-1]
    raise PortTaken(f"{len(candidates)} ports tried between {first} and {last} on {HOST}, all taken")


def _refuse_shared(port: int) -> None:
    """Fail when another stack has merely reserved the port."""
    with socket.socket() as probe:
        probe.bind((HOST, port))


async def kafka_answers(port: int, brokers: int) -> bool:
    """Whether the broker there answers requests and sees this many brokers."""
    try:
        answer = await _exchange(port, struct.pack(">i", len(_METADATA_REQUEST)) + _METADATA_REQUEST)
    except (OSError, asyncio.IncompleteReadError):
        return False
    _correlation, seen = struct.unpack(">ii", answer[:8])
    return bool(seen >= brokers)


async def http_answers(port: int, path: str) -> bool:
    """Whether GET of the path is answered with status 200."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            status = await reader.readline()
        finally:
            writer.close()
    except OSError:
        return False
    return status.split(b" ", 2)[1:2] == [b"200"]


async def postgres_answers(port: int, user: str, database: str) -> bool:
    """Whether the server there lets this user into this database."""
    fields = b"".join(part.encode() + b"\0" for part in ("user", user, "database", database)) + b"\0"
    startup = struct.pack(">ii", 8 + len(fields), _POSTGRES_PROTOCOL) + fields
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(startup)
            answer = await reader.readexactly(len(_AUTHENTICATION_OK))
            writer.write(_TERMINATE)
        finally:
            writer.close()
    except (OSError, asyncio.IncompleteReadError):
        return False
    return answer == _AUTHENTICATION_OK


async def _exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)
    finally:
        writer.close()
