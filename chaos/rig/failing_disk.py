"""A disk that fails for a while: system calls of a process below one directory fail as they are told to.

A library in C (`failing_disk.c`) is loaded into the process by LD_PRELOAD, so the real RocksDB meets the
errors of the system where a failing disk has them. It needs a C compiler, and no root.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from enum import IntFlag, auto
from pathlib import Path

from chaos.rig.waiting import ChaosFailed

_SOURCE = Path(__file__).with_suffix(".c")
#: errno, calls, after, times, refused, match: `struct control` of the library.
_CONTROL = struct.Struct("iIiiI44s")
_REFUSED_AT = 16
#: So many calls that it does not end by itself.
FOREVER = 2**31 - 1


class Call(IntFlag):
    """System calls, as the library names them. CREATE opens for writing."""

    OPEN = auto()
    CREATE = auto()
    READ = auto()
    WRITE = auto()
    SYNC = auto()
    RENAME = auto()
    REMOVE = auto()
    MAKE = auto()
    LIST = auto()
    LOCK = auto()
    STAT = auto()


#: Whatever changes a disk: what a read-only or full one refuses.
CHANGES = Call.CREATE | Call.WRITE | Call.SYNC | Call.RENAME | Call.REMOVE | Call.MAKE


def has_compiler() -> bool:
    """Whether this machine can make the library."""
    return shutil.which("cc") is not None


class FailingDisk:
    """What fails below a directory, in processes that are started with `environment`."""

    def __init__(self, control: Path, under: Path) -> None:
        """`control` is the file by which the processes are told. Raises ChaosFailed without a compiler."""
        self._under = under
        self._library = control.with_suffix(".so")
        self._path = control
        if not control.exists():
            if not has_compiler():
                raise ChaosFailed("a disk that fails needs a C compiler: install one as `cc`, such as gcc")
            control.parent.mkdir(parents=True, exist_ok=True)
            command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
            control.write_bytes(bytes(mmap.PAGESIZE))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    @property
    def environment(self) -> dict[str, str]:
        """For a process whose disk is to fail."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAILING_DISK": str(self._path),
            "FAILING_DISK_UNDER": str(self._under),
        }

    def fail(
        self,
        error: int,
        calls: Call = ~Call(0),
        *,
        match: str = "",
        after: int = 0,
        times: int = FOREVER,
    ) -> None:
        """From now on these calls fail with an errno, on paths that have `match` in them: the first `after`
        succeed, the next `times` fail.
        """
        self._control[: _CONTROL.size] = _CONTROL.pack(0, calls, after, times, 0, match.encode())
        self._control[:4] = struct.pack("i", error)  # last: the calls look at it first

    def heal(self) -> None:
        """From now on all calls succeed."""
        self._control[:4] = bytes(4)

    @property
    def refused(self) -> int:
        """How many calls have failed since `fail`."""
        return int.from_bytes(self._control[_REFUSED_AT : _REFUSED_AT + 4], "little")
