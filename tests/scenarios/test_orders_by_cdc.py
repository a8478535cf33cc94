"""Orders over HTTP whose outbox comes to Kafka by change data capture; `test_orders_over_http.py` polls.

The faults that both relays meet are here for both: a stack of its own may be frozen and killed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest
from asyncpg import ObjectInUseError

from streams.local import Stack, declared, local_stack
from streams.postgres.cdc import RelayKind
from streams.postgres.database import connect
from streams.postgres.errors import DatabaseUnavailable
from tests.postgres import in_a_loop, migrated, of_database
from tests.scenarios.conftest import PROJECT
from tests.scenarios.shop import MIGRATIONS, Shop, relaying
from tests.scenarios.world import World
from tests.waiting import eventually

pytestmark = [
    pytest.mark.stack,
    pytest.mark.verify("it starts Connect: test_orders_over_http.py stands for it"),
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    var = tmp_path_factory.mktemp("captured-orders")
    with local_stack(var, processes=declared(PROJECT), databases=["orders", "polled"], cdc=True) as stack:
        for database in ("orders", "polled"):
            in_a_loop(migrated(of_database(stack.url("postgres"), database), MIGRATIONS))
        yield stack


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    world = World(stack.bootstrap, stack.url("gateway"), stack.var.root)
    with world.supplied():
        yield world


@pytest.fixture
def shop(world: World, stack: Stack) -> Iterator[Shop]:
    with relaying(world, stack.url("postgres"), RelayKind.CDC, stack.url("connect")):
        yield Shop(world, stack.url("postgres"))


def test_orders_survive_a_killed_database_and_a_dropped_slot(world: World, shop: Shop, stack: Stack) -> None:
    world.until_shared([world.start_worker(**shop.settings)])
    ids = shop.place("dropped", range(20))
    stack.signal_process("postgres", signal.SIGKILL)  # the stack starts it again
    ids += shop.place("dropped", range(20, 40))
    eventually(lambda: in_a_loop(_drop_slot(stack.url("postgres"))), "the slot is dropped")
    ids += shop.place("dropped", range(30, 60))  # ten of them once more
    shop.until_told(ids)
    world.check()


async def _drop_slot(url: str) -> bool:
    """Whether there was one, which no connector reads any more."""
    try:
        connection = await connect(url)
    except DatabaseUnavailable:
        return False
    try:
        ended = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active"
        await connection.execute(ended)
        drop = "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots"
        return int(await connection.fetchval(drop)) == 1
    except ObjectInUseError:  # the connector was faster
        return False
    finally:
        await connection.close()


def test_orders_are_settled_once_though_connect_is_killed(world: World, shop: Shop, stack: Stack) -> None:
    world.until_shared([first := world.start_worker(**shop.settings)])
    ids = shop.place("captured", range(20))
    stack.stop_process("connect")
    ids += shop.place("captured", range(20, 40))
    first.signal(signal.SIGKILL)
    world.start_worker(**shop.settings)
    ids += shop.place("captured", range(30, 60))  # ten of them once more
    stack.start_process("connect")
    shop.until_told(ids)
    world.check()


@pytest.mark.parametrize("kind", list(RelayKind))
def test_orders_survive_killed_relay_frozen_broker_and_killed_api(
    world: World, stack: Stack, kind: RelayKind
) -> None:
    url = of_database(stack.url("postgres"), "orders" if kind is RelayKind.CDC else "polled")
    shop, run = Shop(world, url), f"faults-{kind}"
    world.until_shared([first := world.start_worker(**shop.settings)])
    with relaying(world, url, kind, stack.url("connect"), ends=-signal.SIGKILL) as relay:
        ids = shop.place(run, range(20))
        relay.kill()
    ids += shop.place(run, range(20, 30))
    with relaying(world, url, kind, stack.url("connect")):
        ids += _placed_while_frozen(shop, stack, f"{run}-frozen")
        first.signal(signal.SIGKILL)
        assert shop.ask("GET", f"/orders/{ids[0]}") == (0, None), "nobody answers"
        world.start_worker(**shop.settings)
        ids += shop.place(run, range(25, 45))  # five of them once more
        shop.until_told(ids)
    world.check()


def _placed_while_frozen(shop: Shop, stack: Stack, run: str) -> list[str]:
    """Orders that the API takes while the broker's process is stopped: none of them can be settled."""
    broker = stack.state.brokers[0]
    stack.signal_broker(broker.id, signal.SIGSTOP)
    try:
        ids = shop.place(run, range(10))
        assert psutil.Process(broker.pid).status() == psutil.STATUS_STOPPED
        found = shop.statuses()
        assert {found[name] for name in ids} == {("pending", "")}
    finally:
        stack.signal_broker(broker.id, signal.SIGCONT)
    return ids
