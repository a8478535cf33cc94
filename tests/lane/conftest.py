"""Worlds for the lane's tests."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from lane_kafka import KafkaWorld
from lane_worlds import FakeWorld, World, closing

import streams.engine.way.commit
from streams.testing.loop import SimulatedLoop

HERE = Path(__file__).parent


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], SimulatedLoop]]:
    """A fake world takes over the time of the loop that it is made in."""
    return {"simulated": SimulatedLoop}


ON_KAFKA = "on the fake broker in `make test`; what is marked `landing` runs there on both"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        is_ours = item.path.is_relative_to(HERE) and params.get("world") == "kafka"
        if is_ours and not item.get_closest_marker("landing"):
            item.add_marker(pytest.mark.verify(ON_KAFKA))


@pytest.fixture(scope="session", autouse=True)
def positions_follow_soon() -> Iterator[None]:
    """Let an idle lane commit its positions past looped messages at once: on Kafka tests would wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams.engine.way.commit, "LOOPED_COMMIT", 0.02)
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
