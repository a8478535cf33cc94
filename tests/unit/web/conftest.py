"""What tests of pages share: a worker with all lanes, two that share them, and who looks at their pages."""

from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from web_workers import Browser, FakeWorker, Two, make_application, owned_by, owner_of

from streams.control.base import claims, others, owner, standby_rows
from streams.model.application import Application
from streams.saga.views import ChoreographedSaga
from tests.waiting import BOUND


@pytest.fixture(autouse=True)
def _a_machine_may_be_slow(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    """Nobody is given up for taking a second, unless a test says so."""
    for module, name in (
        (claims, "PATIENCE"),
        (others, "PATIENCE"),
        (owner, "TIMEOUT"),
        (standby_rows, "PATIENCE"),
    ):
        monkeypatch.setattr(module, name, BOUND)


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker.with_lanes(0, 1, 2, 3)


@pytest.fixture
async def browser(worker: FakeWorker) -> AsyncIterator[Browser]:
    async with Browser.of(worker) as browser:
        yield browser


@pytest.fixture
def app() -> Application:
    return make_application()


@pytest.fixture
def sagas() -> Sequence[ChoreographedSaga]:
    return ()


@pytest.fixture
async def two(app: Application, sagas: Sequence[ChoreographedSaga]) -> AsyncIterator[Two]:
    """They share the lanes: the first one has 0 and 1."""
    first, second = (
        FakeWorker.with_lanes(*lanes, app=app, choreographed=sagas) for lanes in ((0, 1), (2, 3))
    )
    async with Browser.of(first) as one, Browser.of(second) as other:
        first.url, second.url = one.url, other.url
        for worker in (first, second):
            worker.owns(owned_by(first, second))
        yield first, second, one, other


@pytest.fixture
def first(two: Two) -> FakeWorker:
    return two[0]


@pytest.fixture
def second(two: Two) -> FakeWorker:
    return two[1]


@pytest.fixture
def both(two: Two) -> tuple[FakeWorker, FakeWorker]:
    return two[:2]


@pytest.fixture
def gated(both: tuple[FakeWorker, FakeWorker]) -> None:
    """Each lane has a handler whose circuit breaker opens at the first failure."""
    for worker in both:
        for lane in worker.lanes:
            worker.gate(lane, minimum=1, failure_rate=0.1)


@pytest.fixture
def put(both: tuple[FakeWorker, FakeWorker]) -> Callable[..., str]:
    """Put a dead letter of a key on the worker that has its lane; returns its id."""
    return lambda key, *of, **changes: owner_of(key, *both).put_letter(key, *of, **changes)


@pytest.fixture
def one(two: Two) -> Browser:
    return two[2]


@pytest.fixture
def other(two: Two) -> Browser:
    """Of the second one."""
    return two[3]
