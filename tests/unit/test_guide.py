"""`docs/add-a-service.md` works as printed: its code goes into a copy of the project, and passes there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "add-a-service.md").read_text()
COPIED = ("agents", "tables", "schemas", "streams", "tests/unit/agents", "tests/unit/schemas")
#: In the copy, with the interpreter that runs this.
STEADFAUST = (sys.executable, "-c", "from streams.cli.main import main; main()")

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def code_after(words: str) -> str:
    _, found, rest = GUIDE.partition(words)
    assert found, f"the guide does not say {words!r}"
    block = re.search(r"^```\w*\n(.*?)^```", rest, flags=re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1]


def edited(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for before, after in changes:
        assert before in text, f"{path.name} has no {before!r}"
        text = text.replace(before, after)
    path.write_text(text)


def run(at: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(at), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow("five seconds of processes")
def test_the_guide_adds_a_service_that_passes_its_tests(tmp_path: Path) -> None:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (ROOT / "pyproject.toml", *(ROOT / "tests").glob("*.py")):
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    messages = tmp_path / "agents" / "messages.py"
    edited(messages, ("__all__ = [", '__all__ = [\n    "PointsEarned",'))
    with messages.open("a") as file:
        file.write("\n\n" + code_after("At the end of `agents/messages.py`"))
    (tmp_path / "tables" / "points.py").write_text(code_after("`tables/points.py`. Its changelog"))
    service = tmp_path / "agents" / "loyalty"
    service.mkdir()
    (service / "__init__.py").write_text('"""Points that customers earn."""\n')
    (service / "handlers.py").write_text(code_after("and `agents/loyalty/handlers.py`"))
    wiring = code_after("import `OrderConfirmed` and `PointsEarned`")
    edited(
        tmp_path / "agents" / "choreographies.py",
        (
            "from agents.messages import (",
            f"{wiring}from agents.messages import (\n    OrderConfirmed,\n    PointsEarned,",
        ),
        (
            "stock_first = choreography(",
            code_after("Then a table for both choreographies") + "\nstock_first = choreography(",
        ),
        ("    *stock_keeping,", "    *stock_keeping,\n    *loyalty_points,"),
    )
    edited(tmp_path / "pyproject.toml", ('"agents.payments", ', '"agents.payments", "agents.loyalty", '))
    run(tmp_path, *STEADFAUST, "schemas", "write")
    for frozen in ("events/loyalty.points.earned.v1/1.avsc", "rows/points/1.avsc"):
        assert f"`schemas/{frozen}`" in GUIDE
        assert (tmp_path / "schemas" / frozen).is_file()
    tests = tmp_path / "tests" / "unit" / "agents"
    loyalty = "tests/unit/agents/test_loyalty_handlers.py"
    (tmp_path / loyalty).write_text(code_after(f"`{loyalty}`"))
    edited(tests / "test_choreographies.py", ("ends = {OrderConfirmed.TOPIC, ", "ends = {"))
    run(tmp_path, *PYTEST, loyalty, "tests/unit/agents/test_choreographies.py")
    run(tmp_path, *PYTEST, "tests/unit/schemas", "-k", "loyalty or points")  # the others say nothing of it
