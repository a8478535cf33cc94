"""Sees records come out, as a reader of what is committed does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from streams.ports import Record
from streams.runtime.client import TopicReader


class Follower:
    """Reads topics beside what else happens; use it `async with`. `take` says what to do with a record."""

    def __init__(self, bootstrap: str, topics: Iterable[str]) -> None:
        self._reader = TopicReader(bootstrap, topics)

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._reader.__aexit__(kind, error, trace)

    def take(self, record: Record, now: float) -> None:
        """A record was read at `now`, on the clock of `time.monotonic`."""
        raise NotImplementedError

    def must_read(self) -> None:
        """Raises what has ended the reading, if it has ended."""
        if self._reading.done():
            self._reading.result()

    async def _read(self) -> None:
        while True:
            records = await self._reader.fetch()
            now = time.monotonic()
            for record in records:
                self.take(record, now)
