"""The real RocksDB on a disk that fails, call by call, and is healthy again: nothing is lost or held.

The disk fails by a library in C that is loaded into another process (`chaos.rig.failing_disk`).
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from chaos.rig.failing_disk import FailingDisk, has_compiler
from tests.contract.failing_disk_program import CALLS

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="there is no C compiler, by which a disk is made to fail"),
    pytest.mark.slow("seconds of stores"),
]
PROGRAM = "tests.contract.failing_disk_program"
#: Seconds until a disk is healed in the middle of a call: RocksDB may let a write wait until a full disk has
#: room.
PATIENCE = 60.0
#: Errors of disks and of network file systems. The first are a disk's, a full one's, and a network's that was
#: taken for damage once.
ERRORS = ("EIO", "ENOSPC", "EBUSY")
MORE_ERRORS = ("EROFS", "EDQUOT", "ESTALE", "EAGAIN", "ETIMEDOUT", "ENXIO", "EREMOTEIO")
_OTHERS = pytest.mark.verify(
    "test_a_store_goes_on_after_any_error_of_any_call has three errors; how each other is taken:"
    " test_each_error_is_of_the_files_or_of_the_machine"
)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory where there is one: it is the calls that matter, and syncs take long."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as directory:
        yield Path(directory)


def faults(memory: Path, error: str, how: str, after: Sequence[int], calls: Sequence[str]) -> dict[str, Any]:
    """For each call how many system calls failed, and what was wrong then."""
    root = memory / "disk"
    root.mkdir()
    disk = FailingDisk(memory / "control", root)
    command = [sys.executable, "-m", PROGRAM, error, how, *map(str, after), "--", *calls]
    pipe, environment = subprocess.PIPE, {**os.environ, **disk.environment}
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as child:
        while child.returncode is None:
            try:
                said, errors = child.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                disk.heal()
    assert child.returncode == 0, errors[-3000:]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.promise("failing-disk", "the real RocksDB; eleven calls, ten errors of the system")
@pytest.mark.parametrize("error", [*ERRORS, *(pytest.param(error, marks=_OTHERS) for error in MORE_ERRORS)])
def test_a_store_goes_on_after_any_error_of_any_call(memory: Path, error: str) -> None:
    found = faults(memory, error, "on", (0, 3), list(CALLS))
    assert {call: problems for call, (_, problems) in found.items() if problems} == {}
    assert [call for call, (refused, _) in found.items() if not refused] == []


@pytest.mark.verify("test_a_store_goes_on_after_any_error_of_any_call has the first calls of each")
@pytest.mark.parametrize("how", ["once", "on"])
@pytest.mark.parametrize("call", CALLS)
def test_each_system_call_of_a_store_may_fail(memory: Path, call: str, how: str) -> None:
    found = faults(memory, errno.errorcode[errno.EIO], how, range(0, 400, 5), [call])
    assert found[call][1] == []
    assert found[call][0] > 1
