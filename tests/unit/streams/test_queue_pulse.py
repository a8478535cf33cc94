"""The pulse of a queue's worker ends when it is told to, whatever its connection does meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from streams.postgres.queue import lease_heartbeat
from streams.postgres.queue.lease_heartbeat import LeaseHeartbeat
from tests.waiting import BOUND


class Connection:
    def __init__(self) -> None:
        self.ends: list[Callable[[Any], None]] = []

    def add_termination_listener(self, told: Callable[[Any], None]) -> None:
        self.ends.append(told)

    async def add_listener(self, *_: object) -> None:
        return

    async def execute(self, *_: object) -> None:
        return

    def terminate(self) -> None:
        return


@pytest.mark.parametrize("turns", range(5))
async def test_it_ends_when_its_connection_ends_at_the_same_moment(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Connection] = []

    async def connect(*_: object, **__: object) -> Connection:
        made.append(Connection())
        return made[-1]

    monkeypatch.setattr(lease_heartbeat, "connect", connect)
    lives = asyncio.Event()
    task = asyncio.create_task(LeaseHeartbeat("", "q", 30.0, notified=lambda: None, back=lives.set).run())
    await lives.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    made[0].ends[0](made[0])
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=BOUND)
    assert task.cancelled()
