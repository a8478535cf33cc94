"""A queue in memory, with the rules of the one in PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from streams.errors import PermanentError
from streams.escapes import run_apart
from streams.model.message import Message
from streams.postgres.queue import HANDLE, Job, NewJob, Queue, QueueOptions
from streams.postgres.queue.job import headers_of

#: As a worker's, but the connection is the transaction that `MemoryQueue.transaction` gives.
Handler = Callable[[Any, Job], Awaitable[None]]


class MemoryTransaction:
    """Collects jobs, which are enqueued when the block ends without an error."""

    def __init__(self) -> None:
        self.enqueued: list[tuple[int, NewJob]] = []


class MemoryQueue:
    """Jobs of one queue, and its worker.

    Arguments:
        queue: as it is given to `QueueWorker`.
        handlers: as there; they get a MemoryTransaction, in which they may enqueue.
        options: as there: attempts and delays.
        now: function that returns epoch seconds.
    """

    def __init__(
        self,
        queue: Queue,
        handlers: Handler | Mapping[str, Handler],
        *,
        options: QueueOptions | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._handlers = handlers if isinstance(handlers, Mapping) else {HANDLE: handlers}
        self._options = options or QueueOptions()
        self._now = now
        self._numbers = count(1)
        self._jobs: dict[int, Job] = {}
        self._due: dict[int, float] = {}
        self._failed: set[int] = set()
        #: The error of the last failed attempt, by job.
        self.errors: dict[int, BaseException] = {}

    @property
    def jobs(self) -> list[tuple[str, Job]]:
        """Jobs that are not done, in order, each with its state: ready, waiting, held or failed."""
        return [(self._state(number), self._jobs[number]) for number in sorted(self._jobs)]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        """Enqueue the block's jobs at its end, and none when it raises."""
        transaction = MemoryTransaction()
        yield transaction
        self._commit(transaction)

    async def enqueue(self, transaction: MemoryTransaction, message: Message, **how: Any) -> int:
        """As `Queue.enqueue`. Raises Unencodable."""
        number = next(self._numbers)
        transaction.enqueued.append((number, self._queue.job(message, **how)))
        return number

    async def work_off(self) -> int:
        """Run the ready jobs. Returns the number of attempts."""
        tries = 0
        while ready := [number for number in sorted(self._jobs) if self._state(number) == "ready"]:
            await self._try(ready[0])
            tries += 1
        return tries

    def retry(self, *numbers: int) -> list[int]:
        """As the operators' command."""
        found = [
            n for n in sorted(numbers) if n in self._jobs and self._own_state(n) in ("failed", "waiting")
        ]
        for number in found:
            self._failed.discard(number)
            self._due.pop(number, None)
            self._jobs[number] = replace(self._jobs[number], retry=0)
        return found

    def discard(self, *numbers: int) -> list[int]:
        """As the operators' command."""
        found = [number for number in sorted(numbers) if number in self._jobs]
        for number in found:
            self._forget(number)
        return found

    async def _try(self, number: int) -> None:
        job, transaction = self._jobs[number], MemoryTransaction()

        async def call() -> None:
            if job.action not in self._handlers:
                raise PermanentError(f"there is no handler for {job.action!r}")
            await self._handlers[job.action](transaction, job)

        error = await run_apart(call(), job)
        if error is not None:
            self.errors[number] = error
            self._jobs[number] = replace(job, retry=job.retry + 1, updated=self._time())
            if isinstance(error, PermanentError) or job.retry + 1 >= self._options.tries:
                self._failed.add(number)
            else:
                self._due[number] = self._now() + self._options.pause(job.retry)
        else:
            self._commit(transaction)
            self._forget(number)

    def _commit(self, transaction: MemoryTransaction) -> None:
        for number, new in transaction.enqueued:
            headers, created = headers_of(new.headers), self._time()
            message = new.topic, new.partition, new.key, new.kind, new.action, new.payload
            self._jobs[number] = Job(number, *message, headers, 0, created, created)
            if new.delay:
                self._due[number] = self._now() + new.delay

    def _state(self, number: int) -> str:
        own, key = self._own_state(number), self._jobs[number].key
        behind = key is not None and any(
            earlier < number and job.key == key and self._own_state(earlier) != "ready"
            for earlier, job in self._jobs.items()
        )
        return "held" if own == "ready" and behind else own

    def _own_state(self, number: int) -> str:
        if number in self._failed:
            return "failed"
        return "waiting" if self._due.get(number, 0.0) > self._now() else "ready"

    def _forget(self, number: int) -> None:
        del self._jobs[number]
        self._due.pop(number, None)
        self._failed.discard(number)

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)
