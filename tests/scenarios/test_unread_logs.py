"""Workers under load whose standard error and output are a full pipe: nobody reads what they say."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.messages import Order, OrderLine, OrderPlaced
from tests.scenarios.world import LANES, UnreadLog, Worker, World
from tests.waiting import eventually

pytestmark = pytest.mark.promise("unread-output")

#: Each order is told in the log: the gateway answers 503 once, which is asked only once at a time.
TALKS = {"STEADFAUST_GATEWAY_ATTEMPTS": "1", "STEADFAUST_RETRY_DELAYS": "0.5,1,1.5"}


@pytest.fixture
def unread() -> Iterator[UnreadLog]:
    pipe = UnreadLog()
    yield pipe
    pipe.close()


def placed(world: World, run: str, number: int) -> list[str]:
    """Orders of which the worker logs something."""
    ids = [f"{run}-{each}" for each in range(number)]
    for name in ids:
        lines = (OrderLine(sku=f"sku-{len(name) % 10}", units=1),)
        order = Order(
            order_id=name, customer="c", lines=lines, total_cents=500, card="tok_unavailable_1", country="US"
        )
        world.send([(OrderPlaced(order=order), f"message-{name}")])
        world.expected[name] = ("confirmed", 500)
    return ids


def writes_to_its_log(worker: Worker) -> bool:
    """Whether the main thread stands in write(2) to its standard error or output."""
    number, _, arguments = Path(f"/proc/{worker.process.pid}/syscall").read_text().partition(" ")
    return number == "1" and arguments.split()[0] in ("0x1", "0x2")


def test_a_worker_whose_log_nobody_reads_goes_on(world: World, unread: UnreadLog) -> None:
    worker = world.start_worker(unread=unread, **TALKS)
    world.until_shared([worker])
    unread.stop_reading()
    world.until_settled(placed(world, "nobody-reads", 30))
    assert not writes_to_its_log(worker)
    assert worker.stop() == 0, "it ends although its last lines cannot be written"
    world.check()


def test_lanes_of_a_worker_whose_loop_stands_go_to_others(world: World, unread: UnreadLog) -> None:
    """The control for the test above: without the protection the loop does stand in write(2)."""
    standing = world.start_worker("tests.scenarios.waiting_logs_worker", unread=unread, **TALKS)
    world.until_shared([standing])
    other = world.start_worker(**TALKS)
    world.until_shared([standing, other])
    unread.stop_reading()
    ids = placed(world, "loop-stands", 30)
    eventually(lambda: writes_to_its_log(standing), "the loop of the one stands in write(2)")
    eventually(lambda: len(other.lanes()) == LANES, "the other has all lanes")
    world.until_settled(ids)
    standing.signal(signal.SIGKILL)
    world.check()
