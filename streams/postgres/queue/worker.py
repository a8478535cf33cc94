"""Works on a queue: takes jobs for a time, deletes them in the transaction of what their handler wrote."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from socket import gethostname
from time import time

import asyncpg
import structlog

from streams.errors import PermanentError, shown, text_of
from streams.escapes import run_apart
from streams.postgres.advice import advice
from streams.postgres.database import PASSING, Connection, Database, overdue_of
from streams.postgres.errors import DatabaseUnavailable, LeaseLost, NoSuchAction, StatementRefused
from streams.postgres.queue.idle_wait import IdleWait
from streams.postgres.queue.job import Job, job_of
from streams.postgres.queue.lease_heartbeat import LeaseHeartbeat
from streams.postgres.queue.metrics import QueueMetrics
from streams.postgres.queue.options import QueueOptions
from streams.postgres.queue.queue import HANDLE, SQL, Queue

log = structlog.get_logger(__name__)

#: Does a job: what it writes by this connection commits with the end of the job, or not at all.
JobHandler = Callable[[Connection, Job], Awaitable[None]]

#: Ready jobs that are looked at for one batch at most, for each job of the batch, and at the least.
_REACH, _LEAST_REACH = 10, 1000
_LONGEST_ERROR = 2000
#: What keeps the worker's own statements from being done now: the same ones are tried again. A right that is
#: missing, or a table, may be back then.
_NOT_NOW = (DatabaseUnavailable, StatementRefused, asyncpg.PostgresError, asyncpg.InterfaceError)
_AGAIN, _LONGEST = 0.5, 5.0
_GIVE_BACK = 2.0
#: So often a job is postponed in a row: for locks and conflicts in its handler's way, and for connections
#: that are lost while it runs. Then a try is counted: it may be the handler's own doing, and would last for
#: ever.
_LOCKED, _LOST = 500, 1
#: What a connection that was lost while the handler ran makes of the next statement.
_GONE = (
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.ConnectionDoesNotExistError,
)
#: Jobs whose postponements are remembered.
_REMEMBERED = 10_000


class _JobFailed(Exception):
    """An error of a handler, told apart from errors of the worker itself."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


#: What may come of a job by itself.
_FAILS = (_JobFailed, DatabaseUnavailable, StatementRefused, asyncpg.PostgresError, asyncpg.InterfaceError)


class QueueWorker:
    """Works on a queue until it is stopped; several may, here and on other machines.

    The jobs of a batch are done one after the other in one transaction. When one fails, all of them are done
    once more, each in its own, and only those that fail again have failed: so a handler may run again after
    it was done, but what it wrote by its connection is there once.

    Arguments:
        database: open, with a connection more than `options.concurrency` at the least.
        queue: which.
        handlers: the one for all jobs, or one for each action.
        options: batches, leases and tries.
        metrics: where to count; None: nowhere.
        name: what leases show the worker as; machine and process unless given.
    """

    def __init__(
        self,
        database: Database,
        queue: Queue,
        handlers: JobHandler | Mapping[str, JobHandler],
        *,
        options: QueueOptions | None = None,
        metrics: QueueMetrics | None = None,
        name: str = "",
    ) -> None:
        self._database = database
        self._queue = queue
        self._handlers = handlers if isinstance(handlers, Mapping) else {HANDLE: handlers}
        self._options = options or QueueOptions()
        self._metrics = metrics
        self._name = name or f"{gethostname()}:{os.getpid()}"
        self._doze = IdleWait(self._options.poll)
        self._pulse = LeaseHeartbeat(
            partial(database.session, bound=self._options.lease),
            queue.name,
            self._options.lease,
            notified=self._doze.notified,
            back=self._doze.wake_all,
        )
        self._owed: set[int] = set()
        self._postponed: dict[int, int] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop` is called; while PostgreSQL is away the worker waits for it.

        When this is cancelled, what is under way is rolled back, and others may take it at once.
        """
        async with asyncio.TaskGroup() as group:
            pulse = group.create_task(self._pulse.run())
            slots = [group.create_task(self._slot()) for _ in range(self._options.concurrency)]
            await asyncio.wait(slots)
            pulse.cancel()

    def stop(self) -> None:
        """Take no more; `run` returns when what is under way is done."""
        self._stopping.set()
        self._doze.wake_all()

    async def work_off(self) -> int:
        """Do what is ready now, and return how many jobs were taken, without waiting for more.

        Leases are not renewed meanwhile. Raises DatabaseUnavailable.
        """
        taken = 0
        while jobs := await self._take(lease := secrets.randbits(62)):
            await self._handle(lease, jobs)
            taken += len(jobs)
        return taken

    async def _slot(self) -> None:
        pause = _AGAIN
        while not self._stopping.is_set():
            lease = secrets.randbits(62)
            try:
                await self._pay()
                jobs = await self._take(lease)
                if jobs:
                    self._doze.found()
                    await self._handle(lease, jobs)
                elif self._stopping.is_set():
                    return
                elif self._doze.wished:
                    await self._doze.sleep()
                else:
                    await self._wish()  # and looks once more: what came before that sends no notification
                pause = _AGAIN
            except _NOT_NOW as error:
                self._owed.add(lease)
                log.warning("queue_database_away", queue=self._queue.name, error=_told(error), again_in=pause)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
                pause = min(pause * 2, _LONGEST)
            except asyncio.CancelledError:
                self._owed.add(lease)  # also one that was being taken, whose answer is missing
                await self._pay_at_the_end()
                raise

    async def _wish(self) -> None:
        async with self._database.acquire() as connection:
            await connection.execute(SQL["know"], self._queue.name)
            await connection.execute(SQL["sleep"], self._queue.name)
        self._doze.wished = True

    async def _take(self, lease: int) -> list[Job]:
        options = self._options
        async with self._database.acquire() as connection:
            rows = await connection.fetch(
                SQL["take"],
                self._queue.name,
                self._name,
                lease,
                options.batch,
                timedelta(seconds=options.lease),
                options.tries,
                max(options.batch * _REACH, _LEAST_REACH),
            )
        return [job_of(row) for row in rows]

    async def _handle(self, lease: int, jobs: Sequence[Job]) -> None:
        self._pulse.leases.add(lease)
        try:
            await self._do(lease, jobs)
        except LeaseLost as error:
            log.warning("queue_lease_lost", queue=self._queue.name, jobs=len(jobs), error=text_of(error))
        finally:
            self._pulse.leases.discard(lease)

    async def _do(self, lease: int, jobs: Sequence[Job]) -> None:
        if len(jobs) > 1:
            try:
                await self._together(lease, jobs)
            except LeaseLost:
                raise
            except Exception as error:
                if _is_ours(error):
                    raise
                log.info("queue_batch_failed", queue=self._queue.name, jobs=len(jobs), error=_text(error))
            else:
                return
        behind: set[str] = set()
        for job in jobs:
            if job.key in behind:
                continue
            if not await self._alone(lease, job) and job.key is not None:
                behind.add(job.key)
        if behind:  # those behind failed ones were not begun
            await self._give_back([lease])

    async def _together(self, lease: int, jobs: Sequence[Job]) -> None:
        async with self._database.transaction() as connection:
            for job in jobs:
                await self._run(connection, job)
            try:
                is_ours = await connection.fetchval(SQL["finish"], lease, [job.id for job in jobs])
            except _GONE as error:
                raise _JobFailed(error) from error
            if not is_ours:
                raise LeaseLost(
                    f"jobs {jobs[0].id} and others ran longer than their lease of {self._options.lease:g} s"
                )
        self._count_done(jobs)

    async def _alone(self, lease: int, job: Job) -> bool:
        try:
            await self._together(lease, [job])
        except LeaseLost:
            raise
        except _FAILS as error:
            if _is_ours(error):
                raise
            cause = _of_handler(error) or error
            if self._postponed.get(job.id, 0) < _postponements(error, cause):
                await self._postpone(lease, job, cause)
            else:
                await self._failed(lease, job, cause)
            return False
        return True

    async def _postpone(self, lease: int, job: Job, error: BaseException) -> None:
        """A lock or a conflict was in the handler's way, or its connection was lost: that passes, and is no
        failed try.
        """
        pause = self._options.pause(1)
        async with self._database.acquire() as connection:
            there = await connection.fetchval(
                SQL["postpone"], lease, job.id, _text(error), timedelta(seconds=pause)
            )
        if not there:
            raise LeaseLost(f"job {job.id} ran longer than its lease of {self._options.lease:g} s")
        self._postponed[job.id] = self._postponed.pop(job.id, 0) + 1
        if len(self._postponed) > _REMEMBERED:
            del self._postponed[next(iter(self._postponed))]
        log.warning(
            "queue_job_postponed",
            queue=self._queue.name,
            job=job.id,
            action=job.action,
            again_in=round(pause, 2),
            error=_text(error),
        )

    async def _run(self, connection: Connection, job: Job) -> None:
        async def call() -> None:
            await self._handler(job.action)(connection, job)

        failed = await run_apart(call(), job)
        if failed is not None:
            raise _JobFailed(failed) from failed

    def _handler(self, action: str) -> JobHandler:
        handler = self._handlers.get(action)
        if handler is None:
            known = ", ".join(sorted(self._handlers))
            raise NoSuchAction(f"the worker has no handler for action {action!r}; it has: {known}")
        return handler

    async def _failed(self, lease: int, job: Job, error: BaseException) -> None:
        options = self._options
        last = isinstance(error, PermanentError) or job.retry + 1 >= options.tries
        pause = None if last else timedelta(seconds=options.pause(job.retry))
        async with self._database.acquire() as connection:
            counted = await connection.fetchval(
                SQL["fail"], lease, job.id, _text(error), options.tries, pause
            )
        if not counted:
            raise LeaseLost(f"job {job.id} ran longer than its lease of {options.lease:g} s")
        if last or isinstance(error, PASSING):
            self._postponed.pop(job.id, None)
        write = log.error if last else log.warning
        write(
            "queue_job_failed" if last else "queue_job_retried",
            queue=self._queue.name,
            job=job.id,
            action=job.action,
            retry=job.retry + 1,
            error=_text(error),
        )
        if self._metrics is not None:
            (self._metrics.failed if last else self._metrics.retried).labels(self._queue.name).inc()

    async def _pay(self) -> None:
        """Give back what was under way when the database went away, if it still is."""
        if owed := list(self._owed):
            await self._give_back(owed)
            self._owed.difference_update(owed)

    async def _pay_at_the_end(self) -> None:
        try:
            async with asyncio.timeout(_GIVE_BACK):
                await self._pay()
        except (*_NOT_NOW, TimeoutError) as error:
            log.warning("queue_lease_left", queue=self._queue.name, error=text_of(error))

    async def _give_back(self, leases: Sequence[int]) -> None:
        async with self._database.acquire() as connection:
            await connection.execute(SQL["give_back"], leases)

    def _count_done(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._postponed.pop(job.id, None)
        if self._metrics is not None:
            self._metrics.done.labels(self._queue.name).inc(len(jobs))
            now, latency = time(), self._metrics.latency.labels(self._queue.name)
            for job in jobs:
                latency.observe(max(0.0, now - job.created.timestamp()))


def _of_handler(error: BaseException | None) -> BaseException | None:
    """The error that the handler raised, also where its connection was cut for it."""
    while error is not None and not isinstance(error, _JobFailed):
        error = error.__cause__ or error.__context__
    return None if error is None else error.error


def _postponements(error: Exception, cause: BaseException) -> int:
    """How often what came of a handler is postponed before it counts a try.

    Arguments:
        error: as the transaction ended with it.
        cause: what the handler raised.
    """
    if isinstance(cause, asyncpg.IdleInTransactionSessionTimeoutError) or overdue_of(cause) is not None:
        return 0
    if isinstance(error, DatabaseUnavailable):
        return _LOST
    return _LOCKED if isinstance(cause, PASSING) else 0


def _is_ours(error: Exception) -> bool:
    """Whether this is about the worker's own statements, or PostgreSQL, and says nothing of the job. A
    connection that was cut or lost while the handler ran may be the job's doing: whether PostgreSQL is there
    shows when that is noted, by another connection.
    """
    return isinstance(error, (DatabaseUnavailable, StatementRefused)) and _of_handler(error) is None


def _told(error: Exception) -> str:
    return text_of(error) + (advice(error) if isinstance(error, asyncpg.PostgresError) else "")


def _text(error: BaseException) -> str:
    text = shown(error.error if isinstance(error, _JobFailed) else error)[:_LONGEST_ERROR]
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
