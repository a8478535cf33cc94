"""The orders API and its PostgreSQL, killed at each step of a request: the order is there whole or not at
all, and whoever asks again with the same key has one order.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.api.testing import ApiProcess
from streams.postgres import Database
from tests.cuts import Way
from tests.orders_shop import CUP
from tests.waiting import BOUND, eventually_async

#: Steps of `POST /orders`: after so many statements of its transaction, of which BEGIN is the first and those
#: that write order and message the last; then after its commit, before the answer.
COMMITTED = "committed"
STEPS = [0, 1, 2, 3, 4, COMMITTED]
EACH = [
    step if step == COMMITTED else pytest.param(step, marks=pytest.mark.verify("a process for each step"))
    for step in STEPS
]


class Step:
    """Whether a message ends this step of the request that is made now."""

    def __init__(self, step: int | str) -> None:
        self.step = step
        self.commits = step == COMMITTED
        self.is_asked = False
        self._complete = self._pid = 0

    def __call__(self, pid: int, message: bytes) -> bool:
        if not self.is_asked:
            return False
        if b"BEGIN\0" in message:
            self._pid = pid
        is_complete = pid == self._pid and message[:1] == b"C"
        if is_complete and b"COMMIT\0" in message:
            return self.commits
        self._complete += is_complete
        return self._complete == self.step


pytestmark = [
    pytest.mark.usefixtures("orders_url"),
    pytest.mark.promise(
        "api-atomic",
        "the API, or PostgreSQL, is killed after each statement of the request, and after the commit",
    ),
]


@asynccontextmanager
async def api(url: str, log: Path) -> AsyncIterator[ApiProcess]:
    settings = {
        "STEADFAUST_POSTGRES_URL": url,
        "STEADFAUST_API_PROJECTION": "false",
        "STEADFAUST_CLEANUP_EVERY": "0",  # its transactions would be taken for the request's
    }
    process = ApiProcess(log, os.environ | settings)
    await asyncio.to_thread(process.__enter__)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.kill)
        assert process.process is not None
        assert process.process.stdout is not None
        process.process.stdout.close()


async def place(process: ApiProcess) -> httpx.Response:
    async with httpx.AsyncClient(base_url=process.url, timeout=BOUND) as client:
        return await client.post("/orders", json=CUP, headers={"Idempotency-Key": "k-1"})


async def placed(database: Database) -> list[Any]:
    """What is in the tables: orders, those that messages are about, and those that keys got."""
    return [
        [row[0] for row in await database.pool.fetch(statement)]
        for statement in (
            "SELECT id FROM orders",
            "SELECT aggregate_id FROM outbox",
            "SELECT order_id FROM idempotency_keys",
        )
    ]


@pytest.mark.parametrize("step", EACH)
async def test_a_killed_api_has_placed_a_whole_order_or_none(
    database: Database, tmp_path: Path, step: int | str
) -> None:
    at, victims = Step(step), list[ApiProcess]()
    way = Way(database.url, at, then=lambda _: victims[0].kill())
    async with way, api(way.url, tmp_path / "api.log") as victim:
        victims.append(victim)
        at.is_asked = True
        with pytest.raises(httpx.TransportError):
            await place(victim)
    assert way.was_cut
    orders, messages, keys = found = await placed(database)
    assert orders == messages == keys
    assert len(orders) == at.commits
    async with api(database.url, tmp_path / "api.log") as process:
        answer = await place(process)
    assert answer.status_code == 202
    assert ("idempotency-replayed" in answer.headers) == at.commits
    assert await placed(database) == [[answer.json()["order_id"]]] * 3
    assert not at.commits or found == await placed(database)


@pytest.mark.parametrize("step", EACH[1:])  # without PostgreSQL there is no request
async def test_a_crash_of_postgresql_leaves_a_whole_order_or_none(
    database: Database, tmp_path: Path, step: int | str
) -> None:
    """A server process that is killed takes every session with it, and all that was not on the disk."""
    at = Step(step)
    way = Way(database.url, at, then=lambda pid: os.kill(pid, signal.SIGKILL))
    async with way, api(way.url, tmp_path / "api.log") as process:
        at.is_asked = True
        answer = await place(process)
        assert way.was_cut
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) >= 1
        answers = [answer]

        async def is_placed() -> bool:
            answers.append(await place(process))
            assert answers[-1].status_code in (202, 503)
            return answers[-1].status_code == 202

        await eventually_async(is_placed, "the order is placed")
        answer = answers[-1]
    assert ("idempotency-replayed" in answer.headers) == at.commits
    async with Database(database.url) as again:  # the others' connections are gone
        assert await placed(again) == [[answer.json()["order_id"]]] * 3
