"""Run what depends on versions on the others that are supported: `make verify` does.

    python -m tests.versions [kafka] [3.12] [3.13]

All of them without arguments. Kafka 3.9 has the contract suite. Other Pythons, if on PATH or among those of
pyenv, have unit and lane tests, 200 seeds and a wheel, in an environment of their own, `var/pythons`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST_KAFKA = "3.9.1"
PYTHONS = ("3.12", "3.13")
CONTRACTS = ("tests/contract", "-m", "not verify")
PURE = ("tests/unit", "tests/lane", "-m", "not stack and not slow and not verify")
WHEEL = ("tests/integration/test_readme_worker.py", "tests/integration/test_wheel.py")


def main(wanted: Sequence[str]) -> int:
    """The number of runs that failed."""
    failed = 0
    wanted = wanted or ("kafka", *PYTHONS)
    if "kafka" in wanted:
        failed += run(f"Kafka {OLDEST_KAFKA}", [sys.executable], CONTRACTS, STEADFAUST_KAFKA=OLDEST_KAFKA)
    for version in PYTHONS:
        if version in wanted:
            found = python_of(version)
            if found is None:
                print(f"Python {version}: not tested, there is none here", flush=True)
            else:
                failed += run_on(str(environment_of(found, version)), version)
    return failed


def run_on(python: str, version: str) -> int:
    """Run what needs no more than a broker on another Python; the number of runs that failed."""
    seeds = [python, "-m", "tests.simulation", "--seeds", "0:200"]
    return (
        run(f"Python {version}, unit and lane tests", [python], PURE)
        + report(f"Python {version}, simulation", seeds, PYTHONHASHSEED="0")
        + run(f"Python {version}, wheel", [python], WHEEL)
    )


def run(what: str, python: list[str], tests: Sequence[str], **settings: str) -> int:
    """Run tests; returns 1 if they failed."""
    return report(what, [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], **settings)


def report(what: str, command: Sequence[str], **settings: str) -> int:
    """Run a command and print how it went; returns 1 if it failed."""
    code = subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=False).returncode
    print(f"{what}: {'failed' if code else 'green'}", flush=True)
    return min(code, 1)


def python_of(version: str) -> Path | None:
    """An interpreter of this version, if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    on_path = shutil.which(f"python{version}")
    for each in [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        if subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return each
    return None


def environment_of(python: Path, version: str) -> Path:
    """The interpreter of an environment with the pinned requirements; made when it is missing or older."""
    home = ROOT / "var" / "pythons" / version
    done, pinned = home / ".installed", ROOT / "requirements.txt"
    if not done.exists() or done.stat().st_mtime < pinned.stat().st_mtime:
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", home], check=True)
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", pinned], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
        done.touch()
    return home / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
