"""Distributions of the checkout, and environments that have them."""

from __future__ import annotations

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
#: For compilers and what is fetched, in seconds.
LONG = 1800.0


def built(at: Path) -> Path:
    """A wheel without compiled modules, built from the checkout in an empty folder."""
    return wheel_of(copied(at), at)


def sdist(at: Path) -> Path:
    """A source distribution, built from the checkout in an empty folder."""
    code = f"import setuptools.build_meta as backend; backend.build_sdist({str(at)!r})"
    run(sys.executable, "-c", code, cwd=copied(at / "sources"))
    (made,) = at.glob("steadfaust-*.tar.gz")
    return made


def copied(at: Path) -> Path:
    """The folder with a copy of the sources."""
    at.mkdir(exist_ok=True)
    for name in SOURCES:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, at / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, at / name)
    return at


def wheel_of(source: Path, at: Path, **environment: str) -> Path:
    """A wheel of a source distribution or a folder."""
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", str(at), str(source), cwd=at, environment=environment, bound=LONG)
    (made,) = at.glob("steadfaust-*.whl")
    return made


def run(
    *command: str,
    cwd: Path,
    status: int = 0,
    environment: Mapping[str, str] | None = None,
    bound: float = BOUND,
) -> str:
    environment = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=bound, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def alone(at: Path, extra: str) -> Path:
    """The interpreter of an environment with the pinned packages that an extra needs, and no others."""
    run(sys.executable, "-m", "venv", str(at), cwd=at.parent)
    python, pins = at / "bin" / "python", at / "pins.txt"
    pins.write_text(run(sys.executable, "ops/image_requirements.py", extra, cwd=PROJECT))
    fetch = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r")
    run(str(python), *fetch, str(pins), cwd=at, bound=LONG)
    return python


def installed(wheel: Path, at: Path) -> Path:
    """The interpreter of an environment with the wheel and this one's packages, but not its checkout."""
    run(sys.executable, "-m", "venv", "--without-pip", str(at), cwd=at.parent)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(at)}))
    shutil.unpack_archive(wheel, packages, "zip")
    # A path in it is not searched for further .pth files, of which one is the checkout.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return at / "bin" / "python"
