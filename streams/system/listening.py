"""The one place where servers bind the port that they were given.

A server that is started again gets its port although connections of its predecessor linger. A connection
that went out from that very port, or one to itself, holds it for a minute after its end: that is waited out.
Another program that listens there is named.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from streams.errors import SteadfaustError

log = structlog.get_logger(__name__)

PATIENCE = 90.0
"""Seconds to wait for a port: the system keeps that of an ended connection for 60."""

_EVERY = 0.25
_LISTENS = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class CannotListen(SteadfaustError):
    """A server cannot have its port, or its address is not of this machine."""


async def listen_at(host: str, port: int, *, patience: float = PATIENCE) -> list[socket.socket]:
    """Sockets that are bound to a port at each address of a host; 0: any port, the same at each.

    Raises CannotListen, which names the process that listens there.
    """
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            return bind(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
            if holder := who_listens(port):
                raise CannotListen(
                    f"cannot listen on {host}:{port}: {holder} does. End it, or set another port"
                ) from error
            if time.monotonic() > deadline:
                raise CannotListen(
                    f"cannot listen on {host}:{port}: for {patience:g} s a connection that goes out from this"
                    " port has had it. Set a port outside the range of outgoing connections"
                    " (/proc/sys/net/ipv4/ip_local_port_range)"
                ) from error
            if not told:
                told = True
                log.warning(
                    "port_waits", host=host, port=port, action=f"waits for it, {patience:g} s at most",
                    error="a connection that goes out from this port has it, or had it in the last minute",
                )  # fmt: skip
            await asyncio.sleep(_EVERY)


def bind(host: str, port: int, *, reuse: bool = True) -> list[socket.socket]:
    """The same at once. Raises OSError."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            place = socket.socket(family, kind, protocol)
            found.append(place)
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            if family == socket.AF_INET6:
                place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
            place.bind((address[0], port, *address[2:]))
            port = port or place.getsockname()[1]
    except BaseException:
        for each in found:
            each.close()
        raise
    return found


def who_listens(port: int) -> str:
    """The program that listens on a port, as far as it may be seen; empty: none does."""
    inodes = {inode for at, state, inode in _sockets() if at == port and state == _LISTENS}
    if not inodes:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            for each in (process / "fd").iterdir():
                if str(each.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    return f"process {process.name} ({words.strip()[:100]})"
    return "a process of another user, or of another container,"


def _sockets() -> Iterator[tuple[int, str, str]]:
    """Port, state and inode of each TCP socket here."""
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                words = line.split()
                yield int(words[1].rpartition(":")[2], 16), words[3], words[9]
