"""Compiles the hot path, the modules that every message passes, to C with mypyc in a copy of this package.

The sources stay unchanged. A worker uses the copy if a setting says so (docs/adr/0012-compiled-hot-path.md).
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
#: The modules to compile. None gets slower, and none has classes that mypyc cannot compile or that
#: applications subclass.
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
    """There is no compiler, or it cannot compile the sources."""


def compile_into(target: Path) -> Mapping[str, str]:
    """Compile the hot path into `target`, unless that has been done for the same sources. Returns the
    environment variables with which a worker uses it. Call it in the directory of the application.

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
    if shutil.which(compiler) is None:  # mypyc would only report it after a minute
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
