"""Compiling the hot path: the modules that every event passes, as C by mypyc, in a copy of this package.

The sources stay what they are and what is edited; a worker takes the copy when a setting says so
(docs/adr/0012-compiled-hot-path.md).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from streams.errors import SteadfaustError

PACKAGE = Path(__file__).parents[1]
#: What is compiled. None of these is slower for it, none has classes that mypyc cannot make, or from which
#: applications derive.
HOT = (
    "engine.way.admission",
    "engine.way.attempt",
    "engine.way.dispatch",
    "engine.way.loopback",
    "engine.way.turns",
    "model.avro_bytes",
    "model.avro_source",
    "model.bound",
    "model.envelope",
    "model.layout",
    "model.row_keys",
    "model.sure_fields",
    "kafka.records.batches",
    "kafka.records.writing",
    "engine.way.failure",
    "engine.waiting.gate",
    "engine.way.permission",
    "engine.waiting.queue_rows",
    "engine.waiting.waiting",
    "engine.staging.area",
    "engine.staging.arrival",
    "engine.staging.changelog",
    "engine.staging.changes",
    "engine.staging.commit_order",
    "engine.staging.payloads",
    "engine.staging.entry",
    "engine.staging.inbox",
    "engine.staging.keys",
    "engine.staging.loops",
    "engine.staging.measures",
    "engine.staging.outcomes",
)
_STAMP = "compiled-from"
_NEEDED = "mypyc and a C compiler are needed (on Debian: gcc, and `pip install mypy`)"
OPTIONS = ("--ignore-missing-imports", "--follow-imports=silent")


class CannotCompile(SteadfaustError):
    """There is no compiler, or it refuses the sources."""


def compile_into(target: Path) -> Mapping[str, str]:
    """Compile the hot path into `target`, unless these very sources already are. Returns the environment
    variables with which a worker runs it: it must be started in the directory of the application.

    Raises CannotCompile.
    """
    made = _digest()
    stamp = target / _STAMP
    if not stamp.exists() or stamp.read_text() != made:
        _compile(target)
        stamp.write_text(made)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join((str(target), str(Path.cwd())))}


def _compile(target: Path) -> None:
    compiler, *_ = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler) is None:  # now: mypyc would say so in a minute
        raise CannotCompile(f"{_NEEDED}: {compiler!r} was not found")
    copied = target / PACKAGE.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    sources = [f"{Path(PACKAGE.name, *module.split('.'))}.py" for module in HOT]
    done = subprocess.run(
        [sys.executable, "-m", "mypyc", *OPTIONS, *sources],
        cwd=target,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    missing = [module for module in HOT if not any(copied.glob(f"{module.replace('.', '/')}.*.so"))]
    if done.returncode or missing:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise CannotCompile(f"{_NEEDED}: " + " / ".join(output))


def _digest() -> str:
    digest = sha256(sys.version.encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
