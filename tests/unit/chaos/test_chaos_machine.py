"""A worker's machine in a chaos run is ill for as long as a file says so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.rig.worker_faults import CLOCK, DISK, HostMachine, ailment_of, arm
from streams.errors import StoreUnavailable


def test_a_clock_is_ahead_while_the_file_says_so(tmp_path: Path) -> None:
    file = ailment_of(tmp_path, "worker-0")
    machine = HostMachine(file)
    assert machine.time() == pytest.approx(time.time(), abs=60)
    arm(file, f"{CLOCK} 7200")
    assert machine.time() == pytest.approx(time.time() + 7200, abs=60)
    machine.check_disk(tmp_path)
    file.unlink()
    assert machine.time() == pytest.approx(time.time(), abs=60)


def test_a_disk_is_full_while_the_file_says_so(tmp_path: Path) -> None:
    file = ailment_of(tmp_path, "worker-0")
    machine = HostMachine(file)
    machine.check_disk(tmp_path)
    arm(file, DISK)
    with pytest.raises(StoreUnavailable, match=r"^the disk is full"):
        machine.check_disk(tmp_path)
    assert machine.time() == pytest.approx(time.time(), abs=60)
    file.unlink()
    machine.check_disk(tmp_path)
