"""What ails a worker's machine in a chaos run: its clock is ahead, its disk is full. In the worker's process.

The file that `CHAOS_MACHINE` names says what ails it, for as long as it is there: `clock 7200`, or `disk`.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from streams.ports import Store
from streams.runtime.rocksdb.store import RocksStore, RocksStores
from streams.runtime.rocksdb.store_errors import store_error
from streams.runtime.transactions import producer

#: The environment variable that names the file.
MACHINE = "CHAOS_MACHINE"
CLOCK, DISK = "clock", "disk"


def ailment_of(var: Path, worker: str) -> Path:
    """Where a worker looks for what ails it."""
    return var / "machines" / worker


class HostMachine:
    """The clock and the disk of this process."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _said(self, what: str) -> str:
        try:
            kind, _, more = self._file.read_text().partition(" ")
        except FileNotFoundError:
            return ""
        return (more or kind) if kind == what else ""

    def time(self) -> float:
        """Replacement for `time` in the module with which producers stamp records."""
        return time.time() + float(self._said(CLOCK) or 0)

    def check_disk(self, path: Path) -> None:
        """Raises what a full disk is to a store."""
        if self._said(DISK):
            raise store_error(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def install_machine() -> None:
    """Let this process have such a machine, when it was told where to look."""
    file = os.environ.get(MACHINE)
    if not file:
        return
    machine = HostMachine(Path(file))
    vars(producer)["time"] = machine  # all that it asks of the module
    opens, applies = RocksStores.open, RocksStore.apply

    def open_store(stores: RocksStores, lane: int) -> Store:
        machine.check_disk(stores.path(lane))
        return opens(stores, lane)

    def apply(store: RocksStore, *given: Any, **more: Any) -> None:
        machine.check_disk(store._path)
        applies(store, *given, **more)

    RocksStores.open = open_store  # type: ignore[method-assign,assignment]
    RocksStore.apply = apply  # type: ignore[method-assign,assignment]
