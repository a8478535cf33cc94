"""How many orders a second the API takes: `python -m benchmarks.http_orders [orders] [at once] [processes]`.

One client process drives one API or several over the loopback, each on one PostgreSQL with its usual
settings: an order, the answer to its key and its message are on the disk before it is answered.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import aiohttp
import msgspec
import psutil
import uvloop

from agents.api.testing import ApiProcess
from streams.local import local_stack
from streams.postgres import LIBRARY, MigrationSet, migrate
from streams.postgres.database import connect

MIGRATIONS = MigrationSet("orders", Path(__file__).parents[1] / "agents" / "api" / "migrations")
BODY = {
    "customer": "ada",
    "lines": [{"sku": "cup", "units": 2}, {"sku": "saucer", "units": 2}],
    "total_cents": 1990,
    "card": "card-ok",
    "country": "SE",
}


async def drive(urls: list[str], orders: int, at_once: int) -> list[float]:
    """The seconds each order took to be answered."""
    numbers = count()
    took: list[float] = []
    body = msgspec.json.encode(BODY)

    async def caller(session: aiohttp.ClientSession) -> None:
        while (number := next(numbers)) < orders:
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"key-{number}"}
            started = time.perf_counter()
            url = f"{urls[number % len(urls)]}/orders"
            async with session.post(url, data=body, headers=headers) as answer:
                said = await answer.read()
                if answer.status != 202:
                    raise RuntimeError(f"order {number} was answered {answer.status}: {said.decode()}")
            took.append(time.perf_counter() - started)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(caller(session) for _ in range(at_once)))
    return took


async def prepare(url: str) -> None:
    """Make the tables."""
    connection = await connect(url)
    try:
        await migrate(connection, [LIBRARY, MIGRATIONS])
    finally:
        await connection.close()


async def counted(url: str) -> tuple[int, int]:
    """Orders and messages that are there."""
    connection = await connect(url)
    try:
        return (
            await connection.fetchval("SELECT count(*) FROM orders"),
            await connection.fetchval("SELECT count(*) FROM outbox"),
        )
    finally:
        await connection.close()


def main() -> None:
    """Drive it and print the rate, the latency and the CPU time of the API."""
    arguments = [int(text) for text in sys.argv[1:]]
    orders, at_once, processes = (arguments + [20_000, 64, 1][len(arguments) :])[:3]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        var = Path(directory)
        url = stack.enter_context(local_stack(var, brokers=0, databases=["orders"])).url("postgres")
        asyncio.run(prepare(url))
        environment = {**os.environ, "STEADFAUST_POSTGRES_URL": url, "STEADFAUST_API_PROJECTION": "false"}
        apis = [
            stack.enter_context(ApiProcess(var / f"api-{number}.log", environment))
            for number in range(processes)
        ]
        warm_up = orders // 10
        uvloop.run(drive([api.url for api in apis], warm_up, at_once))
        asyncio.run(forget(url))
        before = cpu(apis)
        started = time.perf_counter()
        took = sorted(uvloop.run(drive([api.url for api in apis], orders, at_once)))
        seconds = time.perf_counter() - started
        spent = cpu(apis) - before
        found = asyncio.run(counted(url))
        if found != (orders + warm_up, orders + warm_up):
            raise RuntimeError(f"{orders + warm_up} were placed, and there are {found} orders and messages")
        median, p99 = took[len(took) // 2] * 1000, took[len(took) * 99 // 100] * 1000
        print(
            f"{orders} orders, {at_once} at once, {processes} API processes: {orders / seconds:.0f}/s,"
            f" median {median:.1f} ms, p99 {p99:.1f} ms, API CPU {spent:.1f} s of {seconds:.1f} s"
        )


async def forget(url: str) -> None:
    """The keys of the warm-up are used again."""
    connection = await connect(url)
    try:
        await connection.execute("DELETE FROM idempotency_keys")
    finally:
        await connection.close()


def cpu(apis: list[ApiProcess]) -> float:
    """Seconds of processor time that these have taken."""
    times = [psutil.Process(api.process.pid).cpu_times() for api in apis if api.process is not None]
    return float(sum(each.user + each.system for each in times))


if __name__ == "__main__":
    main()
