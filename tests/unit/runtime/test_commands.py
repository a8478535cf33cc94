"""What Faust's commands list of a worker, without a broker; and what `faust worker` says without one."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.worker import CHOREOGRAPHIES
from agents.worker import app as orders
from streams.errors import SettingsError
from streams.host import commands
from streams.host.commands import name_of
from streams.settings import Settings
from tests.waiting import BOUND

ROOT = Path(__file__).parents[3]
FAUST = Path(sys.executable).parent / "faust"

#: A worker with two kinds of everything, and an app that has nothing to do with lanes.
MIXED = '''
import faust
from streams import Message, Outcome, Row, Service, Table, Worker, choreography, nothing, on

class Bought(Message, frozen=True, kw_only=True):
    """Somebody has bought something."""
    TOPIC = "shop.bought.v1"
    customer: str
    pieces: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.customer

class Basket(Row, frozen=True, kw_only=True):
    pass

class Old(faust.Record):
    """As it was."""

shop = Service("shop")

@shop.handler(basket=Table("baskets", Basket))
def fill(bought: Bought, basket: Basket | None) -> Outcome:
    """Fill the basket.

    And more that is not listed.
    """
    return nothing("filled")

app = Worker(choreography(on(Bought, fill)))
visits = app.Table("visits", default=int, help="how often they came")

@app.agent(app.topic("shop.visited", value_type=Old))
async def visited(stream):
    """Count them."""

other = faust.App("other")

@other.agent(other.topic("elsewhere"))
async def elsewhere(stream):
    """Not of a worker."""
'''


def faust(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Faust's command for the order application, in a directory without a local stack."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STEADFAUST_")}
    environment |= {"PYTHONPATH": str(ROOT), "STEADFAUST_VAR": str(directory / "var")}
    words = [str(FAUST), "--json", "-A", "agents.worker", *command]
    return subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)


async def listed(kind: Any, app: Any, **options: Any) -> Any:
    """What a command prints of an app, without the process that it is run in."""
    command = object.__new__(kind)
    command.app, command.json, command.quiet = app, True, False
    command.stdout = command.stderr = io.BytesIO()
    await command.run(**options)
    return json.loads(command.stdout.getvalue())


@pytest.mark.stack
def test_a_worker_with_agents_that_lose_events_does_not_start(tmp_path: Path) -> None:
    program = MIXED.replace("@app.agent(", "@app.agent(concurrency=2, channel=", 1)
    assert program != MIXED
    (tmp_path / "mixed.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "STEADFAUST_VAR": str(tmp_path / "var")}
    done = subprocess.run(
        [str(FAUST), "-A", "mixed", "worker"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=BOUND,
    )  # fmt: skip
    assert done.returncode != 0
    assert "a crash loses them. Leave concurrency out" in done.stderr + done.stdout


@pytest.fixture
def mixed() -> ModuleType:
    made = ModuleType("mixed")
    exec(compile(MIXED, "mixed.py", "exec"), made.__dict__)
    for app in (made.app, made.other):
        app.conf.origin = "mixed"
    return made


@pytest.mark.stack
def test_handlers_are_listed_without_a_broker(tmp_path: Path) -> None:
    done = faust(tmp_path, "agents")
    assert done.returncode == 0, done.stderr
    wiring = CHOREOGRAPHIES["stock-first"]
    assert {each["name"]: each["topic"].split(", ") for each in json.loads(done.stdout)} == {
        handler.name: [topic for topic, route in wiring.routes.items() if handler in route.handlers]
        for handler in wiring.handlers()
    }


async def test_tables_and_models_are_those_of_the_order_application() -> None:
    wiring = orders.wiring
    assert [each["name"] for each in await listed(commands.tables, orders)] == sorted(wiring.tables())
    kinds = {*wiring.messages().values(), *(table.row for table in wiring.tables().values())}
    found = [each["name"] for each in await listed(commands.models, orders, builtins=False)]
    assert set(map(name_of, kinds)) <= set(found)
    assert [name for name in found if name.startswith("faust.")] == []


async def test_handlers_and_plain_agents_are_listed_together(mixed: ModuleType) -> None:
    assert await listed(commands.agents, mixed.app, local=False) == [
        {"name": "shop.fill", "topic": "shop.bought.v1", "help": "Fill the basket."},
        {"name": "@visited", "topic": "shop.visited", "help": "Count them."},
    ]
    found = await listed(commands.tables, mixed.app)
    assert found == [{"name": "baskets", "help": "<N/A>"}, {"name": "visits", "help": "how often they came"}]
    assert await listed(commands.models, mixed.app, builtins=False) == [
        {"name": "mixed.Basket", "help": "<N/A>"},
        {"name": "mixed.Bought", "help": "Somebody has bought something."},
        {"name": "Old", "help": "As it was."},
    ]


@pytest.mark.parametrize("name", ["Bought", "mixed.Bought"])
async def test_a_message_is_shown_with_its_fields(mixed: ModuleType, name: str) -> None:
    assert await listed(commands.model, mixed.app, name=name) == [
        {"field": "customer", "type": "str", "default": "*"},
        {"field": "pieces", "type": "tuple[str, ...]", "default": "()"},
    ]


async def test_a_model_of_fausts_own_is_shown_as_faust_does(mixed: ModuleType) -> None:
    assert await listed(commands.model, mixed.app, name="mixed.Old") == []


async def test_of_an_app_without_lanes_fausts_own_are_listed(mixed: ModuleType) -> None:
    found = [{"name": "@elsewhere", "topic": "elsewhere", "help": "Not of a worker."}]
    assert await listed(commands.agents, mixed.other, local=False) == found
    assert await listed(commands.tables, mixed.other) == []


@pytest.mark.stack
def test_a_worker_without_a_broker_says_what_to_do(tmp_path: Path) -> None:
    done = faust(tmp_path, "worker")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no local stack at")
    assert line.endswith("start one with `steadfaust up`, or set STEADFAUST_BOOTSTRAP")


def test_agents_that_share_the_group_of_the_lanes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADFAUST_AGENTS_ID", "steadfaust")
    with pytest.raises(SettingsError, match="lanes and plain agents cannot share a group"):
        Settings().agents_group()
    with pytest.raises(SystemExit, match="error: agents_id and app_id are both 'steadfaust'"):
        Settings.read_or_exit()
