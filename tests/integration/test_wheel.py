"""What `pip install` gives: the library alone, with its licence and its types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.readme import smallest_handler
from tests.waiting import BOUND

PROJECT = Path(__file__).parents[2]
#: What a wheel is built from. A copy: what an earlier build has left in the checkout would be in the wheel.
SOURCES = ("streams", "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel without compiled modules, built from the checkout."""
    at = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, at / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, at / name)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(at))
    run(sys.executable, "-m", "pip", "wheel", *options, str(at), cwd=at)
    (made,) = at.glob("steadfaust-*.whl")
    return made


def run(*command: str, cwd: Path, status: int = 0, environment: Mapping[str, str] | None = None) -> str:
    environment = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def installed(wheel: Path, at: Path) -> Path:
    """The interpreter of an environment with the wheel and this one's packages, but not its checkout."""
    run(sys.executable, "-m", "venv", "--without-pip", str(at), cwd=at.parent)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(at)}))
    shutil.unpack_archive(wheel, packages, "zip")
    # A path in it is not searched for further .pth files, of which one is the checkout.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return at / "bin" / "python"


def test_a_wheel_holds_the_library_alone_with_its_licence(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"streams", "steadfaust"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "streams/py.typed" in names
    assert any(name.startswith("streams/web/templates/") for name in names)


def test_the_smallest_handler_passes_mypy_with_the_wheel(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "environment")
    (tmp_path / "points.py").write_text(smallest_handler())
    where = run(str(python), "-c", "import streams; print(streams.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "environment"))
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "points.py")
    run(*mypy, cwd=tmp_path)
    (tmp_path / "points.py").write_text(smallest_handler().replace("paid.cents", "paid.cent"))
    assert '"OrderPaid" has no attribute "cent"' in run(*mypy, cwd=tmp_path, status=1)


def test_the_application_runs_on_what_the_image_copies(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "environment")
    image = tmp_path / "app"
    image.mkdir()
    last = (PROJECT / "Dockerfile").read_text().rsplit("\nFROM ", 1)[1]
    for line in last.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            _, source, _ = line.split()
            place = shutil.copytree if (PROJECT / source).is_dir() else shutil.copy
            place(PROJECT / source, image / source)
    settings = {"STEADFAUST_APP_ID": "x", "STEADFAUST_BOOTSTRAP": "x", "STEADFAUST_GATEWAY_URL": "http://x"}
    code = "import agents.worker, agents.api.service, agents.gateway, agents; print(agents.__file__)"
    where = run(str(python), "-c", code, cwd=image, environment=settings)
    assert where.startswith(str(image))
