"""Rows read from another process while workers come, go and are killed: reads see what was written."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from examples.first_handler import POINTS, OrderPaid, Points, wiring
from streams import Settings, Worker
from streams.worker.tables import NotNow
from tests.integration.worker_process import environment_of, start
from tests.waiting import BOUND

CUSTOMERS = 8


@contextmanager
def worker_of(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    worker = start("examples.first_handler", environment, log)
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait(BOUND)


async def read_own_writes(app: Worker, name: str, stop: asyncio.Event) -> int:
    """Pay, and read the points of that payment at once, until it is over. Returns how often. Customers and
    messages have a `name` before them: others read the same topic.
    """
    paid, customers = 0, [f"{name}-{number}" for number in range(CUSTOMERS)]
    async with app.client("outside") as client, app.table(POINTS, timeout=BOUND) as points:
        while not stop.is_set() or paid < CUSTOMERS:
            customer, before = customers[paid % CUSTOMERS], paid // CUSTOMERS
            paid += 1
            place = await client.deliver(OrderPaid(customer=customer, cents=100), message_id=f"{name}-{paid}")
            assert await points.get(customer, after=place) == Points(earned=before + 1)
        rows = {key: row.earned async for key, _, row in points.range(f"{name}-")}
        assert sum(rows.values()) == paid
        assert sorted(rows) == customers
    return paid


async def changed_owners(app: Worker, before: dict[int, str]) -> dict[int, str]:
    """The map of owners, once it is another one."""
    owners = app.table(POINTS)._owners
    async with asyncio.timeout(BOUND):
        while True:
            owners.forget()
            with suppress(NotNow):  # the group has no map while it makes one
                if (found := (await owners.get()).owners) != before:
                    return found
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "rebalances",
    [2, pytest.param(50, marks=pytest.mark.verify("the same with 2 rebalances runs in `make test`"))],
)
@pytest.mark.timeout(900)
async def test_reads_see_writes_through_rebalances(kafka: Any, tmp_path: Path, rebalances: int) -> None:
    app_id = f"outside-{rebalances}"
    settings = Settings(app_id=app_id, bootstrap=kafka.bootstrap, partitions=2, lanes=2, session_timeout=6)
    app = Worker(wiring, settings=settings)
    environment = environment_of(app_id, kafka.bootstrap, tmp_path, SESSION_TIMEOUT=6)
    stop = asyncio.Event()
    with worker_of(environment, tmp_path / "first.log"):
        owners = await changed_owners(app, {})
        reading = asyncio.create_task(read_own_writes(app, app_id, stop))
        for number in range(rebalances // 2):
            with worker_of(environment, tmp_path / f"second-{number}.log") as second:
                owners = await changed_owners(app, owners)
                # Half of them end as they should, the others are killed.
                second.send_signal(signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
                owners = await changed_owners(app, owners)
        stop.set()
        paid = await reading
    assert paid >= CUSTOMERS
