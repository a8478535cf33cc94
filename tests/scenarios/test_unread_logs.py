"""Workers under load whose standard error and output are a full pipe: nobody reads what they say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.world import UnreadLog, Worker, World
from tests.waiting import eventually

#: Each order is told in the log, several times.
TALKS = {"STEADFAUST_LOG_LEVEL": "debug"}


@pytest.fixture
def unread() -> Iterator[UnreadLog]:
    pipe = UnreadLog()
    yield pipe
    pipe.close()


def writes_to_its_log(worker: Worker) -> bool:
    """Whether the main thread stands in write(2) to its standard error or output."""
    number, _, arguments = Path(f"/proc/{worker.process.pid}/syscall").read_text().partition(" ")
    return number == "1" and arguments.split()[0] in ("0x1", "0x2")


def test_a_worker_whose_log_nobody_reads_goes_on(world: World, unread: UnreadLog) -> None:
    worker = world.start_worker(unread=unread, **TALKS)
    world.until_shared([worker])
    unread.stop_reading()
    ids = world.place("nobody-reads", 60)
    world.until_settled(ids)
    assert not writes_to_its_log(worker)
    assert worker.stop() == 0, "it ends although its last lines cannot be written"
    world.check()


def test_lanes_of_a_worker_whose_loop_stands_go_to_others(world: World, unread: UnreadLog) -> None:
    """The control for the test above: without the protection the loop does stand in write(2)."""
    standing = world.start_worker("tests.scenarios.waiting_logs_worker", unread=unread, **TALKS)
    world.until_shared([standing])
    other = world.start_worker()
    world.until_shared([standing, other])
    unread.stop_reading()
    ids = world.place("loop-stands", 60)
    eventually(lambda: writes_to_its_log(standing), "the loop of the one stands in write(2)")
    eventually(lambda: len(other.lanes()) == 4, "the other has all lanes")
    world.until_settled(ids)
    standing.process.kill()
    world.check()
