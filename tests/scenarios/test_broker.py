"""The broker is killed in the middle of the load and comes back: workers wait, and settle everything once."""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.local import Stack, declared, local_stack
from tests.scenarios.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.promise("broker-failure", "one broker")

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = tmp_path_factory.mktemp("broker")
    with local_stack(var, processes=declared(PROJECT), revive_after=2.0) as stack:
        yield stack


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    world = World(stack.bootstrap, stack.url("gateway"), stack.var.root)
    with world.supplied():
        yield world


def reachable(world: World) -> bool:
    host, _, port = world.bootstrap.partition(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


def test_a_broker_killed_in_mid_load_changes_no_outcome(stack: Stack, world: World) -> None:
    workers = world.start_worker(), world.start_worker()
    world.until_shared(workers)
    ids = world.load("broker-killed", 900)
    stack.signal_broker(1, signal.SIGKILL)
    killed = time.time()
    eventually(lambda: not reachable(world), "the broker is gone")
    eventually(lambda: reachable(world), "the broker is back")
    world.until_settled(ids)
    assert world.settled_since(ids, killed), "the fault came too late to prove anything"
    assert world.running() == list(workers)
    world.check()
