"""A way to PostgreSQL on which all connections are cut at once: at which message, and how, a test says."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlsplit

_WORDS = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
_FAREWELL = b"E" + (len(_WORDS) + 4).to_bytes(4, "big") + _WORDS
#: Seconds until a late end comes without a word of the client.
_LATE = 0.05

#: Whether to cut at a message, by the id of the server's process and the message itself.
When = Callable[[int, bytes], bool]


class Manner(StrEnum):
    RESET = "reset"
    """The message does not arrive: nobody knows what the server did."""
    END = "end"
    """The message arrives, then the end."""
    HALF = "half"
    """Half of the message arrives, then the end."""
    FAREWELL = "farewell"
    """The message arrives, then the server's last words and the end."""
    LATE_END = "late end"
    """The same, but the end comes when the client has said something more, or a moment later."""


class Way:
    """Forwards to a server while it is entered, and cuts all connections once.

    Arguments:
        url: of the database.
        when: to cut: at which message of the server, counted over all connections, or whether at this one.
        manner: how.
        then: called first, with the process id of the server's process whose message it is.

    Attributes:
        url: by which the database is reached this way, once it is entered.
        was_cut: whether it came to it.
    """

    def __init__(
        self,
        url: str,
        when: When | int,
        manner: Manner = Manner.RESET,
        *,
        then: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._to = urlsplit(url)
        self._when: When = (lambda *_: self._messages == when) if isinstance(when, int) else when
        self._manner = manner
        self._then = then
        self._listening: asyncio.Server | None = None
        self._servers: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = asyncio.Event()
        self._over: set[asyncio.StreamWriter] = set()
        self._messages = 0
        self.was_cut = False
        self.url = ""

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        place = self._to.netloc.rpartition("@")[0] + f"@127.0.0.1:{port}"
        # What is committed is on the disk: the server of tests does not see to that otherwise.
        query = "sslmode=disable&synchronous_commit=on"
        self.url = self._to._replace(netloc=place, query=query).geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listening.wait_closed()

    async def _meet(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [client]
        try:
            from_server, server = await asyncio.open_connection(self._to.hostname, self._to.port)
            ends.append(server)
            self._servers[client] = server
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(from_client, server))
                group.create_task(self._answers(from_server, client))
        except* (OSError, EOFError):
            pass  # one side has ended: so does the other
        finally:
            self._servers.pop(client, None)
            self._tasks.discard(task)
            for writer in ends:
                writer.transport.abort()

    async def _requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            self._said.set()
            server.write(data)
            await server.drain()
        raise EOFError

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        pid = 0
        while True:
            head = await server.readexactly(5)
            message = head + await server.readexactly(int.from_bytes(head[1:], "big") - 4)
            if message[:1] == b"K":
                pid = int.from_bytes(message[5:9], "big")
            if client in self._over:
                continue  # the client has had the last words
            self._messages += 1
            if not self.was_cut and self._when(pid, message):
                self.was_cut = True
                self._then(pid)
                await self._cut(client, message)
                raise EOFError
            client.write(message)
            await client.drain()

    async def _cut(self, client: asyncio.StreamWriter, message: bytes) -> None:
        clients = list(self._servers)
        if self._manner is Manner.HALF:
            client.write(message[: len(message) // 2])
        elif self._manner is not Manner.RESET:
            client.write(message)
        if self._manner in (Manner.FAREWELL, Manner.LATE_END):
            self._over.update(clients)
            for each in clients:
                each.write(_FAREWELL)
        if self._manner is Manner.LATE_END:
            self._said.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._said.wait(), _LATE)
        for each in clients:
            if each in self._servers:
                self._servers[each].transport.abort()
            if self._manner is Manner.RESET:
                each.transport.abort()
            else:
                each.close()


@asynccontextmanager
async def nothing_untold() -> AsyncIterator[None]:
    """Fails when the loop is told in the block of an error that nobody has taken."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        yield
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(before)
    assert told == []
