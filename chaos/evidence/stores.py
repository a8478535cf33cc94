"""The workers' local stores, as they lie on the disk: read as they are, and changed in nothing."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Options, Rdict

from streams.errors import StoreBroken, StoreBusy
from streams.ports import TP

_META = "default"
_POSITION = b"position:"
_OFFSET = struct.Struct(">q")

Rows = dict[bytes, bytes]


@dataclass
class Copy:
    """One worker's copy of a lane.

    Attributes:
        name: where it lies, from the slot on.
        positions: the changelog positions that it says it was brought to.
        tables: its rows by local table and key.
    """

    name: str
    lane: int
    positions: dict[TP, int] = field(default_factory=dict)
    tables: dict[str, Rows] = field(default_factory=dict)


def copies_in(var: Path, lanes: int) -> list[Path]:
    """Every lane's directory of every worker that has a database in it, while there are so many lanes."""
    return sorted(path.parent for path in var.glob(f"workers/*/slot-*/*-{lanes}-lanes/lane-*/CURRENT"))


def read_copy(path: Path) -> Copy:
    """All that is in a lane's store.

    Raises StoreBusy while a worker has it open, StoreBroken when it cannot be read.
    """
    lane = int(path.name.removeprefix("lane-"))
    copy = Copy("/".join(path.parts[-3:]), lane)
    _not_in_use(path)
    options = Options(raw_mode=True)
    try:
        names = Rdict.list_cf(str(path), options)
        families = {name: Options(raw_mode=True) for name in names}
        # What no worker has flushed is in the write-ahead log, which is read as well.
        access = AccessType.read_only(error_if_log_file_exist=False)
        with Rdict(str(path), options, families, access) as database:
            copy.tables = {name: dict(_rows(database.get_column_family(name))) for name in names}
    except Exception as error:  # rocksdict raises bare Exceptions
        raise StoreBroken(f"the store in {path} cannot be read: {error}") from error
    meta = copy.tables.pop(_META)
    copy.positions = {_tp(key): _OFFSET.unpack(value)[0] for key, value in meta.items() if _is_position(key)}
    return copy


def _not_in_use(path: Path) -> None:
    with (path / "LOCK").open("rb") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreBusy(f"the store in {path} is in use: end the workers first") from error


def _rows(family: Any) -> Iterator[tuple[bytes, bytes]]:
    """Not by rocksdict's `items`, which ends at a damaged block as if it were the last."""
    rows = family.iter()
    rows.seek_to_first()
    while rows.valid():
        yield rows.key(), rows.value()
        rows.next()
    rows.status()


def _is_position(key: bytes) -> bool:
    return key.startswith(_POSITION)


def _tp(key: bytes) -> TP:
    topic, _, partition = key.removeprefix(_POSITION).decode().rpartition(":")
    return TP(topic, int(partition))
