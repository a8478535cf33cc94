"""What fails is run once more where it needs a stack, and never hidden."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import gate, report

CONFTEST = """
import os
from pathlib import Path
from tests import report

def pytest_configure(config):
    config.addinivalue_line("markers", "stack: x")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(report.Recorder(Path(os.environ[report.WANTED])))
"""
ONCE = """
import pytest
from pathlib import Path

def test_good(): pass

{mark}
def test_first_bad():
    seen = Path(__file__).with_name("seen")
    if {always} or not seen.exists():
        seen.touch()
        raise ValueError("the broker was slow")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two tests, and a gate that keeps its files beside it."""
    for name in ("LAST", "FLAKY"):
        monkeypatch.setattr(gate, name, tmp_path / "var" / f"{name.lower()}.json")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)  # names of tests are relative to it
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(project: Path, *, stack: bool, always: bool) -> int:
    mark = "@pytest.mark.stack" if stack else ""
    (project / "test_once.py").write_text(ONCE.format(mark=mark, always=always))
    return gate.main(["test", f"--rootdir={project}", "-p", "no:cacheprovider", str(project)])


@pytest.mark.stack
def test_a_flake_of_a_stack_is_green_and_recorded(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(project, stack=True, always=False) == 0
    (flake,) = json.loads(gate.FLAKY.read_text())
    assert flake["nodeid"].endswith("test_once.py::test_first_bad")
    assert "the broker was slow" in flake["text"]
    printed = capfd.readouterr().out
    assert "flaky: test_once.py::test_first_bad: ValueError: the broker was slow" in printed
    assert "1 flaky" in printed
    assert json.loads(gate.LAST.read_text())["passed"] == 1


@pytest.mark.stack
@pytest.mark.parametrize(("stack", "always"), [(True, True), (False, False)], ids=["fails twice", "no stack"])
def test_what_fails_twice_or_has_no_stack_is_red(project: Path, *, stack: bool, always: bool) -> None:
    assert run(project, stack=stack, always=always) == 1
    assert not gate.FLAKY.exists()
    assert not gate.LAST.exists()


def test_many_failures_are_no_flakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "pytest", lambda *_: pytest.fail("they were run again"))
    many = [report.Failure(f"tests/a.py::{i}", True, "E  x") for i in range(gate.MOST + 1)]
    assert gate.again(many, []) is None


@pytest.mark.stack
def test_a_file_that_cannot_be_read_is_no_flake(project: Path) -> None:
    (project / "test_broken.py").write_text("import a_module_that_is_nowhere")
    assert run(project, stack=True, always=False) == 1


def test_verify_runs_nothing_again(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    def failing(_: object, written: Path) -> int:
        flake = report.Failure("tests/a.py::one", True, "E  x")
        written.parent.mkdir(exist_ok=True)
        written.write_text(json.dumps({"passed": 1, "failures": [flake._asdict()], "seconds": {}}))
        return 1

    monkeypatch.setattr(gate, "pytest", failing)
    monkeypatch.setattr(gate, "again", lambda *_: pytest.fail("it was run again"))
    assert gate.main(["verify"]) == 1


RUN: dict[str, Any] = {
    "run": "test", "date": "2026-01-02", "passed": 12, "wall": 61, "processors": 2, "load": [0.1, 2.5],
    "flaky": [], "seconds": {"lane/test_b.py": 20.4, "unit/test_a.py": 1.0},
}  # fmt: skip


def test_the_table_is_made_by_the_run_and_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    monkeypatch.setattr(report, "README", readme)
    monkeypatch.setattr(report, "LAST", tmp_path / "last.json")
    page = gate.with_table(f"# Tests\n{gate._BEGIN}\nold\n{gate._END}\nmore\n", RUN)
    assert "12 tests in 1 min 1 s" in page
    assert "old" not in page
    assert page.endswith("\nmore\n")
    assert gate.with_table(page, RUN) == page
    readme.write_text(page)
    assert report.known_seconds() == {"lane/test_b.py": 20.0, "unit/test_a.py": 1.0}
    report.LAST.write_text(json.dumps({"seconds": {"unit/test_a.py": 3.0}}))
    assert report.known_seconds() == {"lane/test_b.py": 20.0, "unit/test_a.py": 3.0}


def test_longest_files_come_first_in_their_own_order() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    names = ["tests/a.py::one", "tests/b.py::two", "tests/b.py::one", "tests/c.py::one", "tests/d.py::one"]
    items: list[Any] = [Item(name) for name in names]
    report.longest_first(items, {"b.py": 10, "c.py": 20})
    assert [names.index(item.nodeid) for item in items] == [3, 1, 2, 0, 4]
