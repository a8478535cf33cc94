"""Rows a second out of a full outbox."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import psutil

from benchmarks.kafka import rate_of, watch_growth
from benchmarks.relay.ground import AGGREGATES, BOUND, PAUSE, copy, new_topic, relaying, seed
from benchmarks.sections import NotMeasured
from streams.local import Stack
from streams.postgres import Connection
from streams.postgres.cdc.connector import NAME
from streams.postgres.database import connect

#: Of a large payload, and how many of them wait.
LARGE, LARGE_ROWS, LARGE_AGGREGATES = 100_000, 5_000, 500
_ONE_OF = 100


class Burst(NamedTuple):
    """Rows a second, and the most resident memory in MB that the relay had at a sample."""

    rate: float
    megabytes: float


async def polled(stack: Stack, var: Path, rows: int, after: str) -> Burst:
    """A polling relay starts and finds so many rows."""
    return await _polled(stack, var, rows, rows, after)


async def polled_among_many(stack: Stack, var: Path, rows: int) -> Burst:
    """A polling relay finds one in a hundred rows waiting, among those that were published."""
    return await _polled(stack, var, rows, rows // _ONE_OF, "mark", one_waits_of=_ONE_OF)


async def large(stack: Stack, var: Path) -> Burst:
    """A polling relay finds rows with large payloads."""
    return await _polled(
        stack, var, LARGE_ROWS, LARGE_ROWS, "mark", aggregates=LARGE_AGGREGATES, note="n" * LARGE
    )


async def _polled(
    stack: Stack,
    var: Path,
    rows: int,
    waiting: int,
    after: str,
    *,
    one_waits_of: int = 1,
    aggregates: int = AGGREGATES,
    note: str = "",
) -> Burst:
    topic = await new_topic(stack)
    connection = await connect(stack.url("postgres"))
    try:
        await seed(connection, aggregates, note=note)
        await copy(connection, topic, rows, one_waits_of=one_waits_of)
        await connection.execute("VACUUM ANALYZE outbox")
        with relaying(stack, var, after) as relay:
            burst = await _grown(stack, topic, waiting, relay)
            await _all_published(connection)
        return burst
    finally:
        await connection.close()


async def captured(stack: Stack, var: Path, rows: int) -> Burst:
    """Debezium, which knows the outbox, goes on after a pause and finds so many new rows."""
    topic = await new_topic(stack)
    connection = await connect(stack.url("postgres"))
    try:
        with relaying(stack, var, kind="cdc"):
            await seed(connection)
            await _all_published(connection)
            await _tell(stack, "pause", "PAUSED")
            await copy(connection, topic, rows)
            await _tell(stack, "resume", "RUNNING")
            worker = psutil.Process(stack.state.processes["connect"].pid)
            burst = await _grown(stack, topic, rows, worker)
            await _all_published(connection)
        return burst
    finally:
        await connection.close()


async def _grown(stack: Stack, topic: str, rows: int, relay: psutil.Process) -> Burst:
    most = 0.0

    def cpu() -> float:
        nonlocal most
        try:
            most = max(most, relay.memory_info().rss / 1e6)
            times = relay.cpu_times()
        except psutil.NoSuchProcess:
            raise NotMeasured("the relay has ended") from None
        return float(times.user + times.system)

    samples = await watch_growth(stack.bootstrap, topic, rows, cpu, BOUND)
    try:
        return Burst(rate_of(samples, rows).per_second, most)
    except ValueError as error:
        raise NotMeasured(str(error)) from error


async def _all_published(connection: Connection) -> None:
    deadline = time.monotonic() + BOUND
    while left := await connection.fetchval("SELECT count(*) FROM outbox WHERE published_at IS NULL"):
        if time.monotonic() > deadline:
            raise NotMeasured(f"{left} rows are not marked")
        await asyncio.sleep(PAUSE)


async def _tell(stack: Stack, word: str, state: str) -> None:
    """Have the connector pause or go on, and wait until it does."""
    url = f"{stack.url('connect')}/connectors/{NAME}"
    deadline = time.monotonic() + BOUND
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.put(f"{url}/{word}", json={}):
            pass
        while True:
            async with session.get(f"{url}/status") as answer:
                status = await answer.json()
            if {status["connector"]["state"], *(task["state"] for task in status["tasks"])} == {state}:
                return
            if time.monotonic() > deadline:
                raise NotMeasured(f"the connector is {status}")
            await asyncio.sleep(PAUSE)
