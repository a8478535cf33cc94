"""Durability at the price of a few flushes: asks that arrive during one commit share the next."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.gateway.ledger import Ask, Ledger, LedgerAnswer


class GroupCommit:
    """Writes to the ledger in a thread of its own, one transaction at a time, each of up to `most` asks."""

    def __init__(self, ledger: Ledger, *, most: int = 500) -> None:
        self._ledger = ledger
        self._most = most
        self._waiting: deque[tuple[Ask, asyncio.Future[LedgerAnswer]]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-writer")

    async def do(self, ask: Ask) -> LedgerAnswer:
        """Do `ask` and answer once it is on disk. A ledger error reaches all that shared the commit."""
        answer: asyncio.Future[LedgerAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, answer))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await answer

    async def close(self) -> None:
        """Finish the requests that wait, then end the thread. The ledger stays open."""
        if self._writer is not None:
            await self._writer
        self._thread.shutdown()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            try:
                answers = await loop.run_in_executor(
                    self._thread, self._ledger.apply, [ask for ask, _ in batch]
                )
            except Exception as error:  # noqa: BLE001 - it is raised in everyone who waits for this commit
                for _, waiting in batch:
                    if not waiting.done():
                        waiting.set_exception(error)
                continue
            for (_, waiting), answer in zip(batch, answers, strict=True):
                if not waiting.done():  # the client may have hung up; its request is done all the same
                    waiting.set_result(answer)
