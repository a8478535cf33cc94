"""A worker that is cut off from the brokers under load, and comes back: another has its lanes meanwhile."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.rig.network import ClientNetwork
from streams.local import Stack, declared, local_stack
from tests.scenarios.steady import SteadyLoad, check_stalls, last_commits
from tests.scenarios.world import LANES, SESSION_TIMEOUT, Worker, World
from tests.waiting import eventually

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
NAME = "behind-the-proxy"
ORDERS = 20
CUT_OFF_FOR = SESSION_TIMEOUT + 4
LONGEST_STALL = SESSION_TIMEOUT + 4

CUT_OFF = pytest.mark.verify("a worker that is cut off: the other way of being so covers it")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = tmp_path_factory.mktemp("network")
    with local_stack(var, listeners=[NAME], processes=declared(PROJECT)) as stack:
        yield stack


@pytest.fixture(scope="module")
def network(stack: Stack) -> Iterator[ClientNetwork]:
    with ClientNetwork(stack, [NAME]) as network:
        yield network


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    # A machine that is busy must not look like a gateway that is down.
    environment = {"STEADFAUST_GATEWAY_PATIENCE": "60"}
    world = World(stack.bootstrap, stack.url("gateway"), stack.var.root, environment=environment)
    with world.supplied():
        yield world


def workers(world: World, network: ClientNetwork) -> tuple[Worker, Worker]:
    keeper = world.start_worker()
    behind = world.start_worker(
        STEADFAUST_BOOTSTRAP=network.bootstrap(NAME), STEADFAUST_GATEWAY_URL=network.gateway(NAME)
    )
    world.until_shared([keeper, behind])
    return keeper, behind


def committed_since(world: World, moment: float) -> None:
    eventually(lambda: min(last_commits(world).values()) > moment, "every lane commits")


@pytest.mark.promise("one-owner", "connections cut, or silent")
@pytest.mark.parametrize("fault", [pytest.param("cut", marks=CUT_OFF), "blackhole"])
def test_a_worker_that_is_cut_off_changes_no_outcome(
    world: World, network: ClientNetwork, fault: str
) -> None:
    keeper, behind = workers(world, network)
    member_since = behind.generation()
    with SteadyLoad(world, fault) as load:
        committed_since(world, time.time())
        with getattr(network, fault)(NAME) as happened:
            began = time.time()
            eventually(lambda: keeper.lanes() == set(range(LANES)), "the other has its lanes")
            committed_since(world, time.time())
            eventually(lambda: time.time() > began + CUT_OFF_FOR, "longer than its session")
            assert happened.count > 0
        eventually(lambda: behind.generation() > member_since, "it is a member again")
        world.until_shared([keeper, behind])
        back = time.time()
        committed_since(world, back)
    world.until_settled(load.ids)
    check_stalls(world, began, back, LONGEST_STALL)
    assert world.running() == [keeper, behind]
    world.check()
    assert (behind.stop(), keeper.stop()) == (0, 0)


@pytest.mark.verify("a worker that is cut off, beside it")
@pytest.mark.parametrize("fault", ["cut", pytest.param("blackhole", marks=CUT_OFF)])
def test_a_worker_told_to_end_while_cut_off_ends(world: World, network: ClientNetwork, fault: str) -> None:
    keeper, behind = workers(world, network)
    ids = world.place(f"ends-{fault}", ORDERS)
    with getattr(network, fault)(NAME) as happened:
        eventually(lambda: happened.count > 0, "it is cut off")
        assert behind.stop() == 0
        eventually(lambda: keeper.lanes() == set(range(LANES)), "the other has its lanes")
        world.until_settled(ids)
    world.check()
    assert keeper.stop() == 0
