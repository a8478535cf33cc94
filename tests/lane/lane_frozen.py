"""Workers that stand still for hours, as a frozen process does, and go on where they were."""

import asyncio
from typing import Any

from streams.ports import Batch


class Freezer:
    """The cluster as one worker sees it: while frozen, no answer reaches it, and so it does nothing."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._goes = asyncio.Event()
        self._goes.set()
        #: Fetches that may still be made; None for any number.
        self.fetches: int | None = None

    def freeze(self) -> None:
        self._goes.clear()

    def thaw(self) -> None:
        self._goes.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def end_offsets(self, tps: Any) -> Any:
        await self._goes.wait()
        return await self._cluster.end_offsets(tps)

    async def reader(self) -> Any:
        return FrozenReader(self, await self._cluster.reader())

    async def pass_by(self) -> None:
        """Wait until this worker runs, and has a fetch left."""
        while True:
            await self._goes.wait()
            if self.fetches is None or self.fetches > 0:
                break
            await asyncio.sleep(0.01)
        if self.fetches is not None:
            self.fetches -= 1


class FrozenReader:
    def __init__(self, freezer: Freezer, reader: Any) -> None:
        self._freezer = freezer
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        await self._freezer.pass_by()
        found: list[Batch] = await self._reader.fetch(max_records=max_records, timeout=0.0)
        return found
