"""A wheel of the checkout, and environments that have it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tests.waiting import BOUND

PROJECT = Path(__file__).parents[1]
#: What a wheel is built from. A copy: what an earlier build has left in the checkout would be in the wheel.
SOURCES = ("streams", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def built(at: Path) -> Path:
    """A wheel without compiled modules, built from the checkout in an empty folder."""
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
