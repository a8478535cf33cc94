"""`steadfaust new` of the installed wheel: the project passes its own test and lint, and its worker runs."""

import json
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.integration.stacks import steadfaust
from tests.integration.worker_process import environment_of, page, until_ready, working
from tests.waiting import eventually
from tests.wheels import PROJECT, installed, run

NEW = "from streams.cli.main import main; main()"


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A new project called `lamps`, and the interpreter that has the wheel."""
    at = tmp_path_factory.mktemp("new")
    python = str(installed(wheel, at / "environment"))
    assert "created lamps/" in run(python, "-c", NEW, "new", "lamps", cwd=at)
    return at / "lamps", python


def test_a_new_project_passes_its_own_test_and_lint(project: tuple[Path, str]) -> None:
    at, python = project
    written = [path.relative_to(at) for path in at.rglob("*") if path.is_file()]
    assert not [path for path in written if "myapp" in str(path) or "myapp" in (at / path).read_text()]
    assert "1 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=at)
    run(sys.executable, "-m", "mypy", "--python-executable", python, cwd=at)
    run(str(Path(sys.executable).parent / "ruff"), "check", "--no-cache", ".", cwd=at)
    run(str(Path(sys.executable).parent / "ruff"), "format", "--check", "--no-cache", ".", cwd=at)


def test_the_compose_file_of_a_new_project_is_valid(project: tuple[Path, str]) -> None:
    schema = json.loads((PROJECT / "tests" / "compose" / "compose-spec.json").read_text())
    compose = yaml.safe_load((project[0] / "compose.yaml").read_text())
    jsonschema.Draft7Validator(schema).validate(compose)
    ours = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    assert compose["services"]["kafka"]["image"] == ours["kafka-1"]["image"]


def test_a_new_project_runs_on_kafka(kafka, project: tuple[Path, str], tmp_path: Path) -> None:
    at, python = project
    environment = environment_of("lamps", kafka.bootstrap, tmp_path / "var") | {"PYTHONPATH": str(at)}
    with working("lamps.worker", environment, cwd=at) as log:
        url = until_ready(environment, log)
        run(python, "-m", "lamps.place", "o-1", "ada", "lamp", "4900", cwd=at, environment=environment)
        rows = f"{url}/api/tables/orders/rows?key=o-1"
        eventually(lambda: '"status":"placed"' in page(rows).replace(" ", ""), f"a row; see {log}")


@pytest.mark.parametrize("name", ["My-App", "1st", "class", "tests", "json", "streams", "../up", ""])
def test_a_name_that_is_no_package_is_refused(name: str, tmp_path: Path) -> None:
    done = steadfaust("new", name, cwd=tmp_path)
    assert done.returncode == 2
    assert "Invalid value for NAME" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lamps").mkdir()
    (tmp_path / "lamps" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("lamps", "file"):
        done = steadfaust("new", name, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"error: {name} exists and is not empty" in done.stderr
    assert [path.name for path in (tmp_path / "lamps").iterdir()] == ["mine"]
