"""`steadfaust saga check`, on an application that is made for it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import schemas
from streams.cli.main import app
from streams.cli.saga_check import SAGAS, frozen, judge, outlines
from streams.cli.schema_files import declared

SHOP = """
import msgspec
from streams.model.choreography import on
from streams.model.handlers import Service
from streams.model.message import Message
from streams.model.table import Table
from streams.saga import Command, Reply, SagaRow, SagaTransition, orchestrate, saga, step

class Wanted(Message, frozen=True, kw_only=True):
    TOPIC = "shop.wanted.v1"
    id: str
    note: str = ""
    @property
    def key(self): return self.id
class Told(Reply, frozen=True, kw_only=True):
    TOPIC = "shop.replies"
class Log(SagaTransition, frozen=True, kw_only=True):
    TOPIC = "shop.log"
class Take(Command, frozen=True, kw_only=True):
    TOPIC, REPLY = "shop.take", Told
class Give(Command, frozen=True, kw_only=True):
    TOPIC, REPLY = "shop.give", Told
class Pack(Command, frozen=True, kw_only=True):
    TOPIC, REPLY = "shop.pack", Told
class Shelf(msgspec.Struct):
    shelf: int
    {shelf}

{sagas}
sell = orchestrate({given}, service=Service("shop"), table=Table("sales", SagaRow), log=Log)
routes = (on(Wanted, sell), on(Told, sell))
"""
BEGUN = 'saga("sale", started_by=Wanted{more})'
TAKE = '.step("take", Take, compensate=Give, reply=Shelf, timeout=30)'
PACK = '.step("pack", Pack, changes_nothing=True)'
SHIP = '.pivot("ship", Pack)'


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def says(self, *steps: str, more: str = "", shelf: str = "", older: str = "") -> None:
        text = f"Newest = ({BEGUN.format(more=more)}{''.join(steps)})\n{older}"
        given = "Newest, Older" if older else "Newest"
        shop = SHOP.replace("{shelf}", shelf).replace("{sagas}", text).replace("{given}", given)
        (self.folder / "shop.py").write_text(shop)

    def check(self, *arguments: str) -> Result:
        sys.modules.pop("shop", None)
        return CliRunner().invoke(app, ["saga", "check", "--of", "shop", *arguments])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Shop(tmp_path)
    made.says(TAKE, PACK, SHIP)
    assert "nothing is frozen" in made.check().output
    assert made.check("--write").exit_code == 0
    assert made.check().output == "sale, version 1: same as frozen; sagas in flight continue\n"
    yield made
    sys.modules.pop("shop", None)


TOGETHER = f".together({TAKE[1:]}, {PACK[1:]})"
PIVOTS = [TAKE, PACK.replace("step", "pivot"), SHIP.replace("pivot", "step")]
Changed = dict[str, Any]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": [TAKE, SHIP]}, "step pack is gone"),
        ({"steps": [TAKE, PACK.replace("pack", "wrap"), SHIP]}, "step pack is gone; step wrap is new"),
        ({"steps": [PACK, TAKE, SHIP]}, "the order was take, pack, ship and is pack, take, ship"),
        (
            {"steps": [TAKE.replace("compensate=Give", "changes_nothing=True"), PACK, SHIP]},
            "step take is undone by nothing in place of shop.give",
        ),
        (
            {"steps": [TAKE.replace("Take", "Pack"), PACK, SHIP]},
            "step take asks shop.pack in place of shop.take",
        ),
        ({"steps": PIVOTS}, "step pack is the pivot"),
        ({"steps": [TOGETHER, SHIP]}, "the groups of steps that are made together have changed"),
        ({"steps": [TAKE, PACK, SHIP], "more": ', forgets=["note"]'}, "it forgets note in place of nothing"),
        (
            {"steps": [TAKE, PACK, SHIP], "shelf": "row: str"},
            "the reply to step take must tell shelf: int, row: str in place of shelf: int",
        ),
    ],
)
def test_what_strands_sagas_in_flight_fails_and_is_named(shop: Shop, changed: Changed, said: str) -> None:
    shop.says(*changed["steps"], **{name: each for name, each in changed.items() if name != "steps"})
    for arguments in ((), ("--write",)):  # what is frozen is not written over
        found = shop.check(*arguments)
        assert found.exit_code == 1
        assert f"sale, version 1: {said}" in found.output
        assert "Sagas in flight wait until they have their steps again" in found.output


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"steps": [TAKE.replace("30", "90"), PACK, SHIP]},
            "step take has a timeout of 90 s in place of 30 s. Sagas in flight adopt this",
        ),
        ({"steps": [TAKE, PACK, SHIP], "shelf": "row: str = ''"}, "same as frozen"),
    ],
)
def test_what_sagas_in_flight_do_not_depend_on_passes(shop: Shop, changed: Changed, said: str) -> None:
    shop.says(*changed["steps"], **{name: each for name, each in changed.items() if name != "steps"})
    found = shop.check()
    assert (found.exit_code, said in found.output) == (0, True), found.output


def test_a_new_version_beside_the_old_one_is_frozen_too(shop: Shop) -> None:
    older = f"Older = ({BEGUN.format(more='')}{TAKE}{PACK}{SHIP})"
    shop.says(TAKE, SHIP, more=", version=2", older=older)
    assert shop.check().exit_code == 1  # one is frozen, so the other should be
    assert shop.check("--write").exit_code == 0
    found = [json.loads(line) for line in shop.check("--json").output.splitlines()]
    assert [(each["version"], each["state"]) for each in found] == [(1, "same"), (2, "same")]


def test_a_version_taken_away_fails_until_its_file_is(shop: Shop) -> None:
    shop.says(TAKE, SHIP, more=", version=2")
    shop.check("--write")
    found = shop.check()
    assert found.exit_code == 1
    assert "sale, version 1: the application no longer has it. Sagas in flight wait" in found.output
    (shop.folder / "schemas/sagas/sale/1.json").unlink()
    assert shop.check().exit_code == 0


def test_steps_that_share_a_version_are_both_known(shop: Shop) -> None:
    older = f"Older = ({BEGUN.format(more='')}{TAKE}{PACK}{SHIP})\n"
    older += f"Mistake = ({BEGUN.format(more='')}{TAKE}{SHIP})\nOlder = Mistake, Older"
    shop.says(TAKE, SHIP, more=", version=2", older=older.replace("Older = Mistake, Older", ""))
    text = (shop.folder / "shop.py").read_text().replace("Newest, Older", "Newest, Mistake, Older")
    (shop.folder / "shop.py").write_text(text)
    assert "sale, version 1: same as frozen" in shop.check().output


def test_no_saga_and_no_frozen_file_are_errors(shop: Shop) -> None:
    (shop.folder / "schemas/sagas/sale/1.json").write_text("{}")
    assert "1.json is not a frozen saga" in str(shop.check().exception)
    (shop.folder / "shop.py").write_text("routes = ()")
    assert "no saga was found" in str(shop.check().exception)


def test_the_sagas_of_the_application_are_as_they_are_frozen() -> None:
    folder = Path(schemas.__file__).parent
    now = outlines(list(declared(folder.parent / "pyproject.toml").of))
    assert {each.state for each in judge(now, dict(frozen(folder / SAGAS)), folder)} == {"same"}
