"""A way to PostgreSQL that falls silent: it takes what is sent, and forwards nothing, closes included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from chaos.rig.links import Link, LinkFault, LinkFaultKind
from streams.local import loopback


class SilentWay:
    """`url` leads to the database; between `fall_silent` and `speak` nothing passes.

    Attributes:
        held: chunks that were swallowed in the last silence.
    """

    def __init__(self, url: str, port: int) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self.link = Link(port, parts.port)
        place = f"{parts.netloc.rpartition('@')[0]}@{loopback.HOST}:{port}"
        self.url = parts._replace(netloc=place, query="sslmode=disable").geturl()
        self._fault: LinkFault | None = None
        self._last = LinkFault(LinkFaultKind.BLACKHOLE)

    @property
    def held(self) -> int:
        return self._last.count

    def fall_silent(self) -> None:
        self._fault = self._last = LinkFault(LinkFaultKind.BLACKHOLE)
        self.link.begin(self._fault)

    def speak(self) -> None:
        if self._fault is not None:
            self.link.end(self._fault)
            self._fault = None


@asynccontextmanager
async def silent_way(url: str) -> AsyncIterator[SilentWay]:
    """Open for the time of the block; it speaks at first."""
    reserved = loopback.reserve()
    reserved.release()
    way = SilentWay(url, reserved.port)
    await way.link.listen()
    try:
        yield way
    finally:
        way.speak()
        way.link.close()
