"""A world for each test module: its own broker and gateway, because the order topics have fixed names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.local import Stack, declared, local_stack
from tests.postgres import in_a_loop, migrated, of_database
from tests.scenarios.relay_ground import prepared
from tests.scenarios.world import World

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Stock has arrived, no worker runs; the choreography is the module's, stock first unless it says."""
    var = tmp_path_factory.mktemp("world")
    with local_stack(var, processes=declared(PROJECT)) as stack:
        choreography = getattr(request.module, "CHOREOGRAPHY", "stock-first")
        world = World(stack.bootstrap, stack.url("gateway"), var, choreography)
        with world.supplied():
            yield world


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Kafka, Connect and a PostgreSQL with a database for each kind of relay; tests may kill them."""
    var = tmp_path_factory.mktemp("relays")
    with local_stack(var, databases=["captured", "polled"], cdc=True, revive_after=3.0) as stack:
        in_a_loop(prepared(stack.bootstrap))
        for database in ("captured", "polled"):
            in_a_loop(migrated(of_database(stack.url("postgres"), database)))
        yield stack


@pytest.fixture(autouse=True)
def _no_worker_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of those tests that have a world: it takes a broker."""
    yield
    if "world" in request.fixturenames:
        request.getfixturevalue("world").stop()
