"""Three brokers under a steady load: one is killed, frozen or restarted, and no outcome changes."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.kafka.topics import KafkaTopics
from streams.local import Stack, declared, local_stack
from tests.kafka_admin import administering
from tests.scenarios.steady import SteadyLoad, check_stalls, last_commits
from tests.scenarios.world import APP, LANES, World
from tests.waiting import eventually

pytestmark = pytest.mark.promise("broker-failure")

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
REVIVE_AFTER = 2.0
#: A cluster gives up a broker that is gone or frozen after its session of 6 s; then leaders, coordinators and
#: connections follow. Quiet machines need 8 to 12 s in all, one that eight share several times that.
GOES_ON_WITHIN = 90.0
GROUP, TRANSACTION = 0, 1


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = tmp_path_factory.mktemp("brokers")
    with local_stack(var, processes=declared(PROJECT), brokers=3, revive_after=REVIVE_AFTER) as stack:
        yield stack


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    world = World(stack.bootstrap, stack.url("gateway"), stack.var.root)
    world.environment["STEADFAUST_GATEWAY_PATIENCE"] = "120"  # how patient handlers are is told elsewhere
    with world.closing():
        workers = [world.start_worker() for _ in range(3)]
        world.until_shared(workers)
        world.receive_stock()
        yield world


@pytest.fixture(autouse=True)
def _no_worker_outlives_its_test() -> None:
    """Here they outlive all of them: none may be lost."""


def coordinator(world: World, key: str, kind: int) -> int:
    async def ask() -> int:
        async with administering(world.bootstrap) as admin:
            return int(await admin.find_coordinator(key, kind))

    return asyncio.run(ask())


def pid_of(stack: Stack, broker: int) -> int:
    return next(each.pid for each in stack.state.brokers if each.id == broker)


def restart(stack: Stack, broker: int, number: signal.Signals) -> None:
    """End a broker, and return when it was started again."""
    before = pid_of(stack, broker)
    stack.signal_broker(broker, number)
    eventually(lambda: pid_of(stack, broker) != before, "the broker is started again")


def every_topic(world: World) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        async with administering(world.bootstrap) as admin:
            return list(await admin.describe_topics())

    return asyncio.run(ask())


def in_sync(world: World) -> bool:
    return all(len(p["isr"]) == 3 for topic in every_topic(world) for p in topic["partitions"])


def under_load(world: World, run: str, fault: Callable[[], None]) -> None:
    """Inflict a fault in the middle of a load; then every lane goes on, and every order comes out right."""
    workers = world.running()
    with SteadyLoad(world, run) as load:
        eventually(lambda: len(load.ids) > 20, "the load flows")
        began = time.time()
        fault()
        ended = time.time()
        eventually(lambda: min(last_commits(world).values()) > ended, "every lane goes on")
    check_stalls(world, began, time.time(), GOES_ON_WITHIN)
    world.until_settled(load.ids)
    world.check()
    assert world.running() == workers
    assert not [event for worker in workers for event in worker.events("lane_error")]
    eventually(lambda: in_sync(world), "the broker has caught up")


def test_every_topic_has_three_replicas_two_in_sync(world: World) -> None:
    names = [topic["topic"] for topic in every_topic(world)]

    async def describe() -> dict[str, tuple[int, str]]:
        async with KafkaTopics(world.bootstrap) as topics:
            found = await topics.describe(names)
            return {n: (d.replication, d.config["min.insync.replicas"]) for n, d in found.items()}

    found = asyncio.run(describe())
    assert len([name for name in found if name.startswith(APP) and name.endswith("-changelog")]) > 4
    assert {"__consumer_offsets", "__transaction_state", "orders.order.placed.v1"} <= found.keys()
    assert set(found.values()) == {(3, "2")}


def test_the_broker_that_coordinates_the_group_is_killed(stack: Stack, world: World) -> None:
    broker = coordinator(world, APP, GROUP)
    under_load(world, "group-coordinator-killed", lambda: restart(stack, broker, signal.SIGKILL))


@pytest.mark.verify("a killed broker: the one that coordinates the group covers it")
def test_the_broker_that_coordinates_transactions_is_killed(stack: Stack, world: World) -> None:
    broker = coordinator(world, f"{APP}-lane-{LANES - 1}", TRANSACTION)
    under_load(world, "transaction-coordinator-killed", lambda: restart(stack, broker, signal.SIGKILL))
