"""`steadfaust reshard` of the order application, killed in between: every order ends once, money balances."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.choreographies import stock_first
from agents.order_saga import orchestrated
from streams.host.client import unhandled
from tests.scenarios import world as scenario
from tests.scenarios.committed import Committed
from tests.scenarios.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.promise("reshard", "the order application, the command killed by signals")

ROOT = Path(__file__).parents[2]
WIDE, MORE = "scenario-16", 16
RESHARD = ("reshard", WIDE, "--partitions", str(MORE), "--yes")


def command(world: World, *arguments: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from streams.cli.main import main; main()", *arguments],
        env={**os.environ, **world._environment(), **settings},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(world: World, *arguments: str, **settings: str) -> str:
    process = command(world, *arguments, **settings)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.mark.verify("the command on an application; in `make test` lanes are resharded without it")
def test_orders_under_way_go_on_in_more_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = world.start_worker()
    world.until_shared([worker])
    world.until_settled(world.place("before", 60))
    done(world, "handler", "pause", "payments.capture", "--why", "to be resharded")
    waiting = world.place("waiting", 60)
    sagas = world.place("saga", 20, orchestrated=True)
    world.until_settled(sagas)
    sources = [*stock_first.routes, *(route.message.TOPIC for route in orchestrated)]
    eventually(lambda: not asyncio.run(unhandled(world.bootstrap, scenario.APP, sources)), "all is handled")
    assert worker.stop() == 0

    for step in ("records copied", "comparing", "adding partitions"):
        with command(world, *RESHARD) as process:
            assert process.stderr is not None
            seen = next((line for line in process.stderr if step in line or line.startswith("error")), "")
            assert step in seen
            process.kill()
    assert "done: set STEADFAUST_APP_ID=scenario-16" in done(world, *RESHARD)
    late = world.start_worker()
    assert late.process.wait(scenario.BOUND) == 1
    assert "has 16 partitions" in late.events("worker_cannot_start")[0]["error"]

    for name, value in (("APP", WIDE), ("PARTITIONS", MORE)):
        monkeypatch.setattr(scenario, name, value)
    world.committed.close()
    world.committed = Committed(world.bootstrap, MORE)
    new = world.start_worker()
    world.until_shared([new])
    assert world.settled(waiting) < len(waiting)
    done(world, "handler", "resume", "payments.capture", "--why", "resharded")
    after = [*world.place("before", 60), *world.place("waiting", 60, copies=2), *world.place("after", 60)]
    world.until_settled([*after, *world.place("late", 20, orchestrated=True)])
    world.check()
