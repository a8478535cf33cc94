"""Jobs a second, beside pgqueuer and procrastinate: `python -m benchmarks.queue_jobs [--jobs 20000]`.

All three work off the same jobs on one server with its usual settings, one worker process each with as many
jobs in hand; handlers do nothing. Ours and procrastinate's are in order by key. pgqueuer has no order by key:
it does less. The jobs are there before the worker starts; the clock runs until the last is done.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import asyncpg
import pgqueuer
import procrastinate
import typer
from pgqueuer.types import QueueExecutionMode
from procrastinate.types import JSONDict

from streams.local import local_stack
from streams.model.message import Message
from streams.postgres import Connection, Database, Job, Queue, QueueOptions, QueueWorker, migrate

_CHUNK = 1000
_IN_HAND = 100


class WorkAsked(Message, frozen=True, kw_only=True):
    """A job of each of the three."""

    TOPIC = "bench.work.requested.v1"
    number: int
    customer: str

    @property
    def key(self) -> str:
        """The order that is kept."""
        return self.customer


async def ours(url: str, jobs: int, keys: int, *, ordered: bool = True) -> float:
    """Seconds; checks the order of each key."""
    queue = Queue("bench", ordered=ordered)
    last: dict[str, int] = {}
    done = 0

    async def handle(_connection: Connection, job: Job) -> None:
        nonlocal done
        if job.key is not None:
            if last.get(job.key, 0) >= job.id:
                raise RuntimeError(f"job {job.id} of {job.key} came after {last[job.key]}")
            last[job.key] = job.id
        done += 1
        if done == jobs:
            worker.stop()

    async with Database(url, most=8) as database:
        async with database.acquire() as connection:
            for start in range(0, jobs, _CHUNK):
                numbers = range(start, min(start + _CHUNK, jobs))
                await queue.enqueue_many(
                    connection, [WorkAsked(number=each, customer=f"c-{each % keys}") for each in numbers]
                )
        worker = QueueWorker(
            database, queue, handle, options=QueueOptions(batch=_IN_HAND // 4, concurrency=4)
        )
        started = time.perf_counter()
        await worker.run()
        took = time.perf_counter() - started
        async with database.acquire() as connection:
            if left := await connection.fetchval("SELECT count(*) FROM queue_job"):
                raise RuntimeError(f"{left} jobs are left")
    return took


async def ours_without_order(url: str, jobs: int, keys: int) -> float:
    """Seconds."""
    return await ours(url, jobs, keys, ordered=False)


async def of_pgqueuer(url: str, jobs: int, keys: int) -> float:
    """Seconds."""
    pool = await asyncpg.create_pool(url, min_size=4, max_size=8)
    try:
        driver = pgqueuer.AsyncpgPoolDriver(pool)
        queries = pgqueuer.Queries(driver)
        if not await queries.schema_is_installed():
            await queries.install()
        for start in range(0, jobs, _CHUNK):
            payloads = [
                f'{{"number":{n},"customer":"c-{n % keys}"}}'.encode() for n in range(start, start + _CHUNK)
            ]
            some = payloads[: jobs - start]
            await queries.enqueue(["work"] * len(some), list[bytes | None](some), [0] * len(some))
        manager = pgqueuer.QueueManager(queries)
        done = 0

        @manager.entrypoint("work")
        async def work(_job: pgqueuer.Job) -> None:
            nonlocal done
            done += 1

        started = time.perf_counter()
        await manager.run(batch_size=_IN_HAND, mode=QueueExecutionMode.drain)
        took = time.perf_counter() - started
    finally:
        await pool.close()
    if done != jobs:
        raise RuntimeError(f"pgqueuer did {done} of {jobs} jobs")
    return took


async def of_procrastinate(url: str, jobs: int, keys: int) -> float:
    """Seconds."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=8))
    done = 0

    @app.task(name="work")
    async def work(number: int, customer: str) -> None:
        nonlocal done
        del number, customer
        done += 1

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        for start in range(0, jobs, _CHUNK):
            for key in range(keys):
                numbers = (n for n in range(start, min(start + _CHUNK, jobs)) if n % keys == key)
                of_key: list[JSONDict] = [{"number": n, "customer": f"c-{key}"} for n in numbers]
                if of_key:
                    deferrer = work.configure(lock=f"c-{key}")
                    await deferrer.batch_defer_async(*of_key)
        started, before = time.perf_counter(), -1
        while before < done < jobs:  # it ends when all that is left is locked by what is under way
            before = done
            await app.run_worker_async(
                wait=False, concurrency=_IN_HAND, delete_jobs="always", install_signal_handlers=False
            )
        took = time.perf_counter() - started
    if done != jobs:
        raise RuntimeError(f"procrastinate did {done} of {jobs} jobs")
    return took


PEERS: dict[str, Callable[[str, int, int], Awaitable[float]]] = {
    "steadfaust, in order by key": ours,
    "steadfaust, no order": ours_without_order,
    "pgqueuer, no order": of_pgqueuer,
    "procrastinate, in order by key": of_procrastinate,
}


async def _migrate(url: str) -> None:
    async with Database(url, most=1) as database, database.acquire() as connection:
        await migrate(connection)


def command(
    jobs: Annotated[int, typer.Option(min=1)] = 20_000,
    keys: Annotated[int, typer.Option(min=1)] = 500,
    runs: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Work off the same jobs with each, in turns; print the medians."""
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    rates: dict[str, list[float]] = {name: [] for name in PEERS}
    with (
        tempfile.TemporaryDirectory() as home,
        local_stack(Path(home), brokers=0, databases=["bench"]) as stack,
    ):
        url = stack.url("postgres")
        asyncio.run(_migrate(url))
        for run in range(runs):
            for name, work in PEERS.items():
                rates[name].append(jobs / asyncio.run(_timed(work, url, jobs, keys)))
                print(f"run {run + 1}: {name:<32} {rates[name][-1]:10,.0f} jobs/s", flush=True)
    for name, found in rates.items():
        print(f"median: {name:<32} {median(found):10,.0f} jobs/s", flush=True)


async def _timed(work: Callable[[str, int, int], Awaitable[float]], url: str, jobs: int, keys: int) -> float:
    return await work(url, jobs, keys)


if __name__ == "__main__":
    typer.run(command)
