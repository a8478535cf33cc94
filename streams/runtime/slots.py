"""Slots: each worker of a machine takes the lowest free number, by a file lock that dies with the process.

The slot gives the worker its static member id, its directory and its port (docs/adr/0003).
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from streams.errors import SteadfaustError

MOST = 1024


class Slot:
    """A slot held by this process until it ends or `release` is called."""

    def __init__(self, number: int, directory: Path, lock: IO[str]) -> None:
        self.number = number
        self.directory = directory
        self._lock = lock

    def announce(self, url: str) -> None:
        """Write down where the worker's pages are, for commands that look for one."""
        (self.directory / "url").write_text(url)

    def release(self) -> None:
        """Let another worker take it."""
        self._lock.close()


def take_slot(root: Path) -> Slot:
    """Take the lowest free slot under `root`. Raises SteadfaustError when none of them is free."""
    root.mkdir(parents=True, exist_ok=True)
    with _looking(root, fcntl.LOCK_EX):  # a reader's look must not make a free slot seem taken
        return _lowest_free(root)


def _lowest_free(root: Path) -> Slot:
    for number in range(MOST):
        directory = root / f"slot-{number}"
        directory.mkdir(exist_ok=True)
        lock = (directory / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return Slot(number, directory, lock)
    raise SteadfaustError(
        f"all {MOST} slots under {root} are taken: stop workers, or use another var directory"
    )


def addresses(root: Path) -> list[str]:
    """Where the pages of the workers are that hold a slot under `root` now, by slot."""
    slots = sorted(root.glob("slot-*"), key=lambda path: int(path.name.removeprefix("slot-")))
    if not slots:
        return []
    with _looking(root, fcntl.LOCK_SH):
        files = [directory / "url" for directory in slots if _is_held(directory / "lock")]
    return [file.read_text().strip() for file in files if file.exists()]


@contextmanager
def _looking(root: Path, how: int) -> Iterator[None]:
    """While slots are looked at, which takes their locks for a moment, none is taken, and the reverse."""
    with (root / "lock").open("a") as file:
        fcntl.flock(file, how)
        yield


def _is_held(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def free_port(preferred: int) -> int:
    """The preferred loopback port when it is free, else any free one; 0 prefers none."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # As the server will: a port that a worker has just left is not in the way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SteadfaustError("no free port on the loopback address: close something that listens there")
