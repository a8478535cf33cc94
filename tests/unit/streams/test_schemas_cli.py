"""`steadfaust schemas` and the command itself."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from streams.cli.main import app
from streams.cli.schema_files import BadSchemas
from streams.errors import WiringError

SHOP = '''
from streams.model.choreography import on
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import nothing
from streams.model.table import Table
from streams.saga.messages import Command, Reply

class Sold(Message, frozen=True, kw_only=True):
    """Something was sold.

    Attributes:
        sku: what.
    """

    TOPIC = "shop.thing.sold.v1"
    sku: str
    {field}

class Count(Row, frozen=True, kw_only=True):
    """How many."""

    n: int = 0

class Told(Reply, frozen=True, kw_only=True):
    """How it ended."""

    TOPIC = "shop.replies"

class Pack(Command, frozen=True, kw_only=True):
    """Pack it."""

    TOPIC = "shop.pack"
    REPLY = Told

service = Service("shop")

@service.handler(sends=[Told], count=Table("counts", Count))
def sell(event: Sold | Pack, count: Count | None):
    return nothing("")

routes = (on(Sold, sell), on(Pack, sell))
'''
#: A field that was called b.
ALIAS = (
    """bb: __import__("typing").Annotated[str, __import__("msgspec").Meta(extra={"aliases": ["b"]})] = "" """
)
PARTS = (
    """parts: tuple[__import__("msgspec").defstruct("Part", [("NAME", str, "")], frozen=True), ...] = ()"""
)
SOLD = "events/shop.thing.sold.v1"


class Shop:
    """The application, as it is after each change, and the commands in its directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "pyproject.toml").write_text('[tool.steadfaust.schemas]\nof = ["shop"]\nfolder = "frozen"\n')
        self.changes("")

    def changes(self, field: str) -> None:
        sys.modules.pop("shop", None)
        (self.place / "shop.py").write_text(SHOP.replace("{field}", field))

    def run(self, *words: str) -> Result:
        sys.modules.pop("shop", None)
        return CliRunner().invoke(app, ["schemas", *words])

    def frozen(self) -> list[str]:
        folder = self.place / "frozen"
        return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())

    def sold(self, file: str) -> Path:
        return self.place / "frozen" / SOLD / file


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a change within a second would not be seen
    yield Shop(tmp_path)
    sys.modules.pop("shop", None)


def test_an_application_may_have_frozen_nothing(shop: Shop) -> None:
    done = shop.run("check")
    assert done.stdout == "nothing is frozen yet: workers use the schemas of the classes\n"
    assert done.exit_code == 0


def test_the_first_versions_are_frozen_by_kind_and_once(shop: Shop) -> None:
    done = shop.run("write")
    assert done.exit_code == 0
    assert "frozen     shop.thing.sold.v1 as version 1" in done.stdout
    assert shop.frozen() == [
        "commands/shop.pack/1.avsc",
        f"{SOLD}/1.avsc",
        "replies/shop.replies/1.avsc",
        "rows/counts/1.avsc",
    ]
    again = shop.run("write")
    assert (again.exit_code, again.stdout) == (0, "unchanged: 4 of 4\n")
    assert shop.run("check").stdout == "4 of 4 are the same as frozen\n"


def test_a_change_fails_the_check_until_it_is_frozen(shop: Shop) -> None:
    shop.run("write")
    shop.changes("units: int = 1")
    done = shop.run("check")
    assert done.exit_code == 1
    assert "shop.thing.sold.v1: Sold differs from version 1: units is new." in done.stdout
    assert "steadfaust schemas write shop.thing.sold.v1" in done.stdout
    first = shop.sold("1.avsc").read_text()
    assert shop.run("write", "shop.thing.sold.v1").exit_code == 0
    assert shop.sold("1.avsc").read_text() == first
    second = json.loads(shop.sold("2.avsc").read_text())
    assert [field["name"] for field in second["fields"]] == ["sku", "units"]
    assert shop.run("check").exit_code == 0


def test_a_changed_default_is_a_new_version(shop: Shop) -> None:
    shop.changes("units: int = 1")
    shop.run("write")
    shop.changes("units: int = 2")
    assert "the default of units goes from 1 to 2" in shop.run("check").stdout
    assert "as version 2" in shop.run("write").stdout


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", "units: int", "the new version cannot read the one before: reader field missing default value"),
        ("units: int", "", "the version before cannot read the new one: reader field missing default value"),
        ("units: int", "units: str", "type mismatch"),
    ],
)
def test_what_neighbours_cannot_read_is_refused_without_a_reason(
    shop: Shop, before: str, after: str, told: str
) -> None:
    shop.changes(before)
    shop.run("write")
    shop.changes(after)
    refused = shop.run("write")
    assert refused.exit_code == 1
    assert told in refused.stderr
    assert f"{SOLD}/2.avsc" not in shop.frozen()
    assert shop.run("write", "--why", "No reader is left.").exit_code == 2, "it must name what it is about"
    assert shop.run("write", "shop.thing.sold.v1", "--why", "No reader is left.").exit_code == 0
    assert shop.sold("2.reason.txt").read_text() == "No reader is left.\n"
    assert shop.run("check").exit_code == 0
    shop.sold("2.reason.txt").unlink()
    missing = shop.run("check")
    assert missing.exit_code == 1
    assert told in missing.stdout
    assert "Give the reason in" in missing.stdout


@pytest.mark.promise("renamed-fields")
@pytest.mark.parametrize("way", ["drop", "alias"])
def test_a_rename_is_refused_until_its_values_are_spoken_for(shop: Shop, way: str) -> None:
    shop.changes('b: str = ""')
    shop.run("write")
    shop.changes('bb: str = ""')
    for words in ([], ["--drop", "sku"]):
        refused = shop.run("write", *words)
        assert refused.exit_code == 1
        assert "b is gone and bb new: if it is a rename, its values are lost" in refused.stderr
        assert "steadfaust schemas write shop.thing.sold.v1 --drop b\n" in refused.stderr
    assert f"{SOLD}/2.avsc" not in shop.frozen()
    if way == "alias":
        shop.changes(ALIAS)
    assert shop.run("write", *(["--drop", "b"] if way == "drop" else [])).exit_code == 0
    assert f"{SOLD}/2.avsc" in shop.frozen()
    assert shop.run("check").exit_code == 0


def test_a_field_that_goes_or_comes_alone_is_no_rename(shop: Shop) -> None:
    for field in ('b: str = ""', "", 'bb: str = ""'):
        shop.changes(field)
        assert shop.run("write").exit_code == 0


@pytest.mark.promise("renamed-fields")
def test_a_rename_within_a_part_is_refused(shop: Shop) -> None:
    shop.changes(PARTS.replace("NAME", "b"))
    shop.run("write")
    shop.changes(PARTS.replace("NAME", "bb"))
    refused = shop.run("write")
    assert "parts.b is gone and parts.bb new" in refused.stderr
    assert shop.run("write", "--drop", "parts.b").exit_code == 0


def test_an_alias_alone_is_a_new_version(shop: Shop) -> None:
    shop.changes('bb: str = ""')
    shop.run("write")
    shop.changes(ALIAS)
    assert "bb is also read from b" in shop.run("check").stdout
    assert shop.run("write").exit_code == 0
    assert json.loads(shop.sold("2.avsc").read_text())["fields"][1]["aliases"] == ["b"]


def test_a_new_message_beside_frozen_ones_fails_the_check(shop: Shop) -> None:
    shop.run("write", "counts")
    done = shop.run("check")
    assert done.exit_code == 1
    assert "shop.thing.sold.v1: Sold is not frozen. Freeze it: steadfaust schemas write" in done.stdout


def test_one_without_a_class_is_told_and_stays(shop: Shop) -> None:
    shop.run("write")
    (shop.place / "frozen" / SOLD).rename(shop.place / "frozen" / "events" / "shop.thing.lost.v1")
    done = shop.run("check")
    assert "frozen, but not in the wiring: shop.thing.lost.v1" in done.stdout


def test_both_commands_speak_json(shop: Shop) -> None:
    written = [json.loads(line) for line in shop.run("write", "--json").stdout.splitlines()]
    assert {(each["done"], each["version"]) for each in written} == {("frozen", 1)}
    subjects = sorted(each["subject"] for each in written)
    assert subjects == ["counts", "shop.pack", "shop.replies", "shop.thing.sold.v1"]
    shop.changes("units: int")
    lines = [json.loads(line) for line in shop.run("check", "--json").stdout.splitlines()]
    counts, *_, sold = sorted(lines, key=lambda each: each["subject"])
    assert (counts["state"], counts["problems"]) == ("frozen", [])
    assert (sold["state"], sold["differences"]) == ("changed", ["units is new"])
    assert len(sold["fingerprint"]) == 16


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--of", "shop:lost"], "shop has no lost"),
        (["--of", "nowhere"], "nowhere cannot be imported"),
        (["--of", "json"], "json has neither a choreography nor routes"),
        (["--folder", "shop.py"], "shop.py is not a folder"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(shop: Shop, words: list[str], told: str) -> None:
    done = shop.run("check", *words)
    assert isinstance(done.exception, BadSchemas)
    assert told in str(done.exception)


def test_nobody_has_said_where_the_wiring_is(shop: Shop) -> None:
    (shop.place / "pyproject.toml").unlink()
    assert "--of" in str(shop.run("check").exception)
    assert shop.run("check", "--of", "shop:routes").exit_code == 0


def test_the_wiring_of_a_worker_is_found(shop: Shop) -> None:
    with (shop.place / "shop.py").open("a") as file:
        file.write(
            "from streams import Worker, choreography\napp = Worker(choreography(*routes))\ndel routes\n"
        )
    assert shop.run("check", "--of", "shop:app").exit_code == 0
    assert shop.run("write", "--of", "shop").exit_code == 0
    assert "events/shop.thing.sold.v1/1.avsc" in shop.frozen()


def test_a_table_in_pyproject_that_does_not_read_is_told(shop: Shop) -> None:
    (shop.place / "pyproject.toml").write_text('[tool.steadfaust.schemas]\nfrom = "shop"\n')
    assert "[tool.steadfaust.schemas]" in str(shop.run("check").exception)


def test_a_gap_between_versions_is_told(shop: Shop) -> None:
    shop.run("write")
    shop.sold("3.avsc").write_text("{}")
    shop.changes("units: int = 1")
    done = shop.run("write")
    assert "has versions [1, 3]: they must count from 1 without a gap" in str(done.exception)
    assert shop.sold("3.avsc").read_text() == "{}"


def test_a_file_that_is_no_schema_is_named(shop: Shop) -> None:
    shop.run("write")
    shop.sold("1.avsc").write_text("{}")
    assert f"{SOLD}/1.avsc: '{{}}' is not a schema" in str(shop.run("check").exception)


def test_a_topic_that_nobody_has_is_a_wrong_call(shop: Shop) -> None:
    assert shop.run("write", "shop.thing.lost.v1").exit_code == 2


def test_a_field_without_avro_is_told_before_anything_is_written(shop: Shop) -> None:
    shop.changes("units: int | str")
    done = shop.run("write")
    assert isinstance(done.exception, WiringError)
    assert "Sold.units is int | str" in str(done.exception)
    assert shop.frozen() == []


def test_it_says_its_version() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"steadfaust {version('steadfaust')}\n")
