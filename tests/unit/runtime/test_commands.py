"""What Faust's commands list of a worker, without a broker; and what `faust worker` says without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.worker import CHOREOGRAPHIES
from streams.runtime.commands import name_of

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


def faust(directory: Path, app: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Faust's command, in a directory without a local stack."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STEADFAUST_")}
    environment |= {"PYTHONPATH": str(ROOT), "STEADFAUST_VAR": str(directory / "var"), "COLUMNS": "200"}
    return subprocess.run(
        [str(FAUST), "--json", "-A", app, *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def listed(directory: Path, app: str, *command: str) -> Any:
    done = faust(directory, app, *command)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    (tmp_path / "mixed.py").write_text(MIXED)
    return tmp_path


def test_agents_lists_every_handler_of_the_order_application(tmp_path: Path) -> None:
    found = {each["name"]: each["topic"].split(", ") for each in listed(tmp_path, "agents.worker", "agents")}
    wiring = CHOREOGRAPHIES["stock-first"]
    assert found == {
        handler.name: [topic for topic, route in wiring.routes.items() if handler in route.handlers]
        for handler in wiring.handlers()
    }


def test_tables_and_models_list_those_of_the_order_application(tmp_path: Path) -> None:
    wiring = CHOREOGRAPHIES["stock-first"]
    assert [each["name"] for each in listed(tmp_path, "agents.worker", "tables")] == sorted(wiring.tables())
    kinds = {*wiring.messages().values(), *(table.row for table in wiring.tables().values())}
    found = [each["name"] for each in listed(tmp_path, "agents.worker", "models")]
    assert found == sorted(map(name_of, kinds))


def test_handlers_and_plain_agents_are_listed_together(mixed: Path) -> None:
    assert listed(mixed, "mixed", "agents") == [
        {"name": "shop.fill", "topic": "shop.bought.v1", "help": "Fill the basket."},
        {"name": "@visited", "topic": "shop.visited", "help": "Count them."},
    ]
    assert listed(mixed, "mixed", "tables") == [
        {"name": "baskets", "help": "<N/A>"},
        {"name": "visits", "help": "how often they came"},
    ]
    assert listed(mixed, "mixed", "models") == [
        {"name": "mixed.Basket", "help": "<N/A>"},
        {"name": "mixed.Bought", "help": "Somebody has bought something."},
        {"name": "Old", "help": "As it was."},
    ]


@pytest.mark.parametrize("name", ["Bought", "mixed.Bought"])
def test_a_message_is_shown_with_its_fields(mixed: Path, name: str) -> None:
    assert listed(mixed, "mixed", "model", name) == [
        {"field": "customer", "type": "str", "default": "*"},
        {"field": "pieces", "type": "tuple[str, ...]", "default": "()"},
    ]


def test_of_an_app_that_is_no_worker_the_commands_list_what_faust_does(mixed: Path) -> None:
    found = [{"name": "@mixed.elsewhere", "topic": "elsewhere", "help": "Not of a worker."}]
    assert listed(mixed, "mixed:other", "agents") == found
    assert listed(mixed, "mixed:other", "tables") == []


def test_a_worker_without_a_broker_ends_with_one_line_that_says_what_to_do(mixed: Path) -> None:
    done = faust(mixed, "mixed", "worker")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no local stack at")
    assert line.endswith("start one with `steadfaust up`, or set STEADFAUST_BOOTSTRAP")


def test_agents_that_share_the_group_of_the_lanes_are_refused(mixed: Path, monkeypatch: Any) -> None:
    (mixed / "mixed.py").write_text(f"import os\nos.environ['STEADFAUST_AGENTS_ID'] = 'steadfaust'\n{MIXED}")
    done = faust(mixed, "mixed", "agents")
    assert done.returncode == 1
    assert "lanes and plain agents cannot share a group" in done.stderr
