"""Parts of a page, sent anew as they change, to everybody who looks on (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import structlog

from streams.control.base.view import Problem

log = structlog.get_logger(__name__)

#: Seconds between two makings of the parts.
INTERVAL = 1.0
#: Who may look on at the same time; each is a connection that stays.
MOST_LISTENERS = 32


class Live:
    """Makes the parts about each second while there is a listener, once for all of them; nothing while there
    is none. A listener that is slow skips what it has missed.
    """

    def __init__(self, make: Callable[[], Awaitable[Mapping[str, str]]], interval: float = INTERVAL) -> None:
        """`make` returns the parts by the names of their events."""
        self.listeners = 0
        self._make = make
        self._interval = interval
        self._parts: Mapping[str, str] = {}
        self._made = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def runs(self) -> bool:
        """Whether it makes the parts at present."""
        return self._task is not None

    def end(self) -> None:
        """Let all listeners end, for good."""
        self._ended = True
        self._stop()

    def listen(self) -> AsyncIterator[bytes]:
        """Events, as they go to a browser. Raises Problem 503 when too many look on, or the worker ends."""
        if self._ended:
            raise Problem(503, "not_now", "the worker is stopping")
        if self.listeners >= MOST_LISTENERS:
            raise Problem(
                503,
                "too_many_listeners",
                f"{MOST_LISTENERS} browsers watch this worker already: use another one",
            )
        return self._listen()

    async def _listen(self) -> AsyncIterator[bytes]:
        self.listeners += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live")
        sent: dict[str, str] = {}
        try:
            while not self._ended:
                made = self._made
                for name, text in self._parts.items():
                    if sent.get(name) != text:
                        yield event(name, text)
                        sent[name] = text
                await made.wait()
                if not self.runs:  # it has failed, which the log tells: the browser tries again
                    return
        finally:
            self.listeners -= 1
            if not self.listeners:
                self._stop()

    async def _run(self) -> None:
        try:
            while True:
                self._parts = await self._make()
                self._tell()
                await asyncio.sleep(self._interval)
        except Exception:
            log.exception("live_failed", action="those who look on are let go, and come again")
            self._stop()

    def _stop(self) -> None:
        """Begin anew with the next part: nothing old is shown to a later reader."""
        task, self._task, self._parts = self._task, None, {}
        if task is not None:
            task.cancel()
        self._tell()

    def _tell(self) -> None:
        made, self._made = self._made, asyncio.Event()
        made.set()


def event(name: str, text: str) -> bytes:
    """As the standard has it: each line of the text is one of the event."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n".encode()
