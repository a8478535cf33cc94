"""The directory of a demo, empty at the start, and the stack in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.workers import PROJECT, held_slots
from streams.errors import SteadfaustError
from streams.local import Stack, declared, declared_buckets, declared_databases, local_stack, running
from streams.postgres.outbox_owner import RelayKind

REPORT = "report.json"
_MARK = "made-by-the-demo"
#: What a run leaves here.
_LEFT = ("kafka", "s3", "postgres", "connect", "gateway", "workers", "faust", "log", REPORT)
_NEEDED = {"gateway": "gateway", "s3": "S3", "postgres": "PostgreSQL"}
_NEEDED_BY_CDC = {"connect": "Kafka Connect (`steadfaust up --cdc`)"}

Say = Callable[[str], None]


@contextmanager
def stack_in(var: Path, relay: RelayKind, say: Say) -> Iterator[Stack]:
    """The stack that is up in this directory; otherwise one of our own, on an empty directory, for as long
    as the demo runs. Raises DemoFailed or StackError.
    """
    is_cdc = relay is RelayKind.CDC
    if (found := running(var)) is not None:
        say(f"using the stack that is up in {var}, with what it holds")
        needed = _NEEDED | (_NEEDED_BY_CDC if is_cdc else {})
        for name, title in needed.items():
            if name not in found.state.processes:
                raise DemoFailed(f"the stack in {var} runs no {title}: start it in the project's directory")
        yield found
        return
    clear(var, say)
    connect = ", Kafka Connect" if is_cdc else ""
    say(f"starting Kafka, S3, PostgreSQL{connect} and the payment gateway in {var}")
    project = PROJECT / "pyproject.toml"
    with local_stack(
        var,
        processes=declared(project),
        buckets=declared_buckets(project),
        databases=declared_databases(project),
        cdc=is_cdc,
        say=say,
    ) as stack:
        yield stack


def clear(var: Path, say: Say) -> None:
    """Remove what the last demo left here, and nothing that another one made. Raises DemoFailed."""
    left = [var / name for name in _LEFT if (var / name).exists()]
    if left and not (var / _MARK).exists():
        raise DemoFailed(f"{var} holds data that no demo made: choose another --var")
    if pids := held_slots(var).values():
        raise DemoFailed(
            f"workers still run in {var}: end pid {', '.join(pids)} first, or choose another --var"
        )
    if left:
        say(f"removing the last demo's data in {var}")
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    var.mkdir(parents=True, exist_ok=True)
    (var / _MARK).write_text("The next demo empties this directory.\n")


class DemoFailed(SteadfaustError):
    """The demo cannot go on; the message is one line that says why and names the logs."""
