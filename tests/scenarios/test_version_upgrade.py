"""An earlier version is replaced under load, and comes back: no order is lost, none is settled twice."""

import asyncio
import io
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.local import declared, local_stack
from tests.kafka_admin import set_in_topics
from tests.scenarios.conftest import PROJECT
from tests.scenarios.steady import SteadyLoad
from tests.scenarios.world import Worker, World
from tests.waiting import BOUND, eventually

#: The version that `tests/lane/test_lane_upgrade.py` has data of.
EARLIER = "11f4c36"
#: A line of code that marks the logs of its workers.
MARK = """\nprint('{"event": "earlier_version"}', flush=True)\n"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the earlier version's code."""
    archive = ["git", "archive", EARLIER]
    archived = subprocess.run(archive, cwd=PROJECT.parent, capture_output=True, check=False)
    if archived.returncode:
        pytest.skip(f"this copy's history does not reach back to {EARLIER}: {archived.stderr.decode()}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as files:
        files.extractall(folder, filter="data")
    with (folder / "streams" / "__init__.py").open("a") as code:
        code.write(MARK)
    return folder


@pytest.fixture(scope="module")
def world(earlier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Stock has arrived at a worker of the earlier version; no worker runs."""
    var = tmp_path_factory.mktemp("world")
    with local_stack(var, processes=declared(PROJECT)) as stack:
        world = World(stack.bootstrap, stack.url("gateway"), var)
        with world.supplied(folder=earlier):
            yield world


def until_more_settled(world: World, load: SteadyLoad, count: int) -> None:
    """Wait until so many orders more have come to an end."""
    before = world.settled(load.ids)
    eventually(lambda: world.settled(load.ids) >= before + count, f"{count} orders more are settled")


def correct_topics(world: World, refused: Worker) -> None:
    """Set in each topic what the error of a worker that has refused to start names."""
    assert refused.process.wait(BOUND) == 1
    (refusal,) = refused.events("worker_cannot_start")
    topics = re.findall(r"--alter --topic (\S+) --add-config message.timestamp.type=Log\w+", refusal["error"])
    asyncio.run(set_in_topics(world.bootstrap, topics, {"message.timestamp.type": "LogAppendTime"}))


def replaced(
    world: World, going: Worker, staying: Worker, folder: Path | None, *, by: signal.Signals
) -> Worker:
    """A worker in place of one that a signal ends, beside one that stays. One of the earlier version begins
    when that has all lanes: in the place of a newer one it would be given topics that it does not know.
    """
    going.signal(by)
    going.process.wait(BOUND)
    if folder is not None:
        world.until_shared([staying])
    worker = world.start_worker(folder=folder)
    world.until_shared([staying, worker])
    return worker


@pytest.mark.verify("two versions side by side; in `make test` data of the earlier one opens")
def test_an_earlier_version_is_replaced_under_load_and_comes_back(world: World, earlier: Path) -> None:
    first, second = (world.start_worker(folder=earlier) for _ in range(2))
    world.until_shared([first, second])
    with SteadyLoad(world, "upgrade", by_saga=True) as load:
        until_more_settled(world, load, 200)
        correct_topics(world, world.start_worker())
        new = replaced(world, first, second, None, by=signal.SIGTERM)
        until_more_settled(world, load, 400)
        newer = replaced(world, second, new, None, by=signal.SIGKILL)
        until_more_settled(world, load, 400)
        back = replaced(world, new, newer, earlier, by=signal.SIGTERM)
        until_more_settled(world, load, 400)
        last = replaced(world, newer, back, earlier, by=signal.SIGKILL)
        until_more_settled(world, load, 400)
    world.until_settled(load.ids)
    world.check()
    workers = (first, second, new, newer, back, last)
    versions = [bool(worker.events("earlier_version")) for worker in workers]
    assert versions == [True, True, False, False, True, True]
    ended = [worker.process.returncode for worker in workers[:4]]
    assert ended == [0, -signal.SIGKILL, 0, -signal.SIGKILL]
    assert [worker for worker in world.workers if worker.events("lane_error")] == []
