"""Worlds for the lane's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from lane_kafka import KafkaWorld
from lane_worlds import FakeWorld, World, closing

import streams.lane.commit


@pytest.fixture(scope="session", autouse=True)
def positions_follow_soon() -> Iterator[None]:
    """An idle lane commits its positions past looped messages at once: these seconds are real ones, which
    tests with a clock of their own would spend waiting.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams.lane.commit, "LOOPED_COMMIT", 0.02)
        yield


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
