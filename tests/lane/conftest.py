"""Worlds for the lane's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lane_kafka import KafkaWorld
from lane_worlds import FakeWorld, World, closing


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.stack)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """The same test on the fake broker and on a real one."""
    if request.param == "fake":
        made: World = FakeWorld()
    else:
        stack = request.getfixturevalue("kafka")
        made = KafkaWorld(stack.bootstrap, tmp_path, stack.var.kafka)
    async with closing(made) as world:
        yield world


@pytest.fixture
async def fake() -> AsyncIterator[FakeWorld]:
    """In memory only: for what Kafka cannot be made to do, and for the passing of days."""
    made = FakeWorld()
    async with closing(made):
        yield made


@pytest.fixture
def fatal() -> list[BaseException]:
    """Errors for which a worker would stop."""
    return []
