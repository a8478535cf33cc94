"""A worker that is cut off from the brokers under load, and comes back: another has its lanes meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.commits import CommitWatch
from chaos.network import Network
from streams.local import Stack, declared, local_stack
from tests.scenarios.world import APP, LANES, PARTITIONS, SESSION_TIMEOUT, Worker, World, eventually

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
NAME = "behind-the-proxy"
ORDERS_AT_A_TIME = 20
INTERVAL = 0.5
CUT_OFF_FOR = SESSION_TIMEOUT + 4
LONGEST_STALL = SESSION_TIMEOUT + 4
#: A rebalance takes a session and a join; then lanes open.
MOVED_WITHIN = 40.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = tmp_path_factory.mktemp("network")
    with local_stack(var, listeners=[NAME], processes=declared(PROJECT)) as stack:
        yield stack


@pytest.fixture(scope="module")
def network(stack: Stack) -> Iterator[Network]:
    with Network(stack, [NAME]) as network:
        yield network


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    # A machine that is busy must not look like a gateway that is down.
    environment = {"STEADFAUST_GATEWAY_PATIENCE": "60"}
    world = World(stack.bootstrap, stack.url("gateway"), stack.var.root, environment=environment)
    first = world.start_worker()
    try:
        world.until_shared([first])
        world.receive_stock()
        assert first.stop() == 0
        yield world
    finally:
        world.stop()


def workers(world: World, network: Network) -> tuple[Worker, Worker]:
    """One that keeps its connections, and one behind the proxy."""
    keeper = world.start_worker()
    behind = world.start_worker(
        STEADFAUST_BOOTSTRAP=network.bootstrap(NAME), STEADFAUST_GATEWAY_URL=network.gateway(NAME)
    )
    world.until_shared([keeper, behind])
    return keeper, behind


@contextmanager
def steady_load(world: World, run: str) -> Iterator[list[str]]:
    """Place some orders again and again; yields the ids of those that are placed."""
    ended, ids = threading.Event(), list[str]()

    def place() -> None:
        while not ended.wait(INTERVAL):
            ids.extend(world.place(f"{run}-{len(ids)}", ORDERS_AT_A_TIME))

    with ThreadPoolExecutor() as aside:
        placing = aside.submit(place)
        try:
            yield ids
        finally:
            ended.set()
            placing.result()


class Watched:
    """Each lane's commits, seen from outside."""

    def __init__(self, watch: CommitWatch) -> None:
        self._watch = watch

    def since(self, moment: float) -> list[int]:
        """How often each lane has committed since then."""
        return [sum(at > moment for at in times) for times in self._watch.commits().seen.values()]

    def longest_stall(self) -> float:
        """The longest time between two commits of a lane, in seconds."""
        seen = self._watch.commits().seen.values()
        return max(later - earlier for times in seen for earlier, later in pairwise(times))


@contextmanager
def watched(world: World) -> Iterator[Watched]:
    watch = CommitWatch(world.bootstrap, APP, PARTITIONS, LANES)
    loop = asyncio.new_event_loop()
    running = loop.create_task(watch.run())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(running)

    with ThreadPoolExecutor() as aside:
        ran = aside.submit(run)
        try:
            yield Watched(watch)
        finally:
            loop.call_soon_threadsafe(running.cancel)
            ran.result()
            loop.close()


def committed_since(watch: Watched, moment: float) -> None:
    eventually(lambda: all(watch.since(moment)), "every lane commits", LONGEST_STALL)


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
def test_a_worker_that_is_cut_off_loses_its_lanes_and_comes_back_and_changes_no_outcome(
    world: World, network: Network, fault: str
) -> None:
    keeper, behind = workers(world, network)
    member_since = behind.generation()
    with watched(world) as watch, steady_load(world, fault) as ids:
        committed_since(watch, time.time())
        with getattr(network, fault)(NAME) as happened:
            began = time.time()
            eventually(lambda: keeper.lanes() == set(range(LANES)), "the other has its lanes", MOVED_WITHIN)
            committed_since(watch, time.time())
            eventually(lambda: time.time() > began + CUT_OFF_FOR, "longer than its session")
            assert happened.count > 0
        eventually(lambda: behind.generation() > member_since, "it is a member again", MOVED_WITHIN)
        world.until_shared([keeper, behind], MOVED_WITHIN)
        committed_since(watch, time.time())
    world.until_settled(ids)
    assert watch.longest_stall() <= LONGEST_STALL
    assert world.running() == [keeper, behind]
    world.check()
    assert (behind.stop(), keeper.stop()) == (0, 0)


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
def test_a_worker_that_is_told_to_end_while_it_is_cut_off_ends(
    world: World, network: Network, fault: str
) -> None:
    keeper, behind = workers(world, network)
    ids = world.place(f"ends-{fault}", ORDERS_AT_A_TIME)
    with getattr(network, fault)(NAME) as happened:
        eventually(lambda: happened.count > 0, "it is cut off")
        assert behind.stop() == 0
        eventually(lambda: keeper.lanes() == set(range(LANES)), "the other has its lanes", MOVED_WITHIN)
        world.until_settled(ids)
    world.check()
    assert keeper.stop() == 0


def test_a_delay_makes_a_worker_slower_and_nothing_else(world: World, network: Network) -> None:
    keeper, behind = workers(world, network)
    member_since = behind.generation()
    with (
        watched(world) as watch,
        steady_load(world, "delay") as ids,
        network.delay(NAME, 0.2) as happened,
    ):
        began = time.time()
        committed_since(watch, began)
        eventually(lambda: time.time() > began + CUT_OFF_FOR, "longer than its session")
        committed_since(watch, time.time())
        assert happened.count > 0
    world.until_settled(ids)
    assert behind.generation() == member_since, "a slow member is a member"
    assert behind.events("lane_reopens") == []
    world.check()
    assert (behind.stop(), keeper.stop()) == (0, 0)
