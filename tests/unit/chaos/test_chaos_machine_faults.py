"""Faults of a worker's machine: each is seen to happen and to heal, or it did not happen."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from chaos.faults.machines import DISKS
from chaos.faults.perform import perform
from chaos.rig import failing_disk
from chaos.rig.failing_disk import FailingDisk, has_compiler
from chaos.rig.fleet import disk_of
from chaos.rig.kinds import WAYS_OF, FaultKind, Planned
from chaos.rig.waiting import ChaosFailed
from demo.worker_log import WorkerLog

pytestmark = pytest.mark.promise("chaos", "a disk that no system call met makes a run fail")

APP = "chaos"
#: Writes a line every moment, and says on its standard output what it met.
WRITES = """
import sys, time
path, seen = sys.argv[1], set()
while True:
    try:
        with open(path, "a") as file:
            print("here", file=file)
        met = 0
    except OSError as error:
        met = error.errno
    if met not in seen:
        seen.add(met)
        print(met, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def ground(tmp_path: Path) -> Any:
    log = tmp_path / "worker-1.log"
    log.write_text("")
    worker = SimpleNamespace(name="worker-1", slot=1, log=WorkerLog(log))

    async def until_open(_: Any) -> None:
        """At once."""

    return SimpleNamespace(
        var=tmp_path,
        layout=SimpleNamespace(app_id=APP),
        worker=lambda _: worker,
        fleet=SimpleNamespace(alive=[]),
        until_open=until_open,
    )


@contextmanager
def writing_to(path: Path, disk: FailingDisk) -> Iterator[IO[str]]:
    """What a process has met that writes to this file again and again, a line each."""
    command = [sys.executable, "-SE", "-c", WRITES, str(path)]
    with subprocess.Popen(command, env=disk.environment, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            yield writer.stdout
        finally:
            writer.kill()


def planned(which: int = 0) -> Planned:
    return Planned(at=0.0, kind=FaultKind.FAILING_DISK, seconds=0.1, which=which, slot=1)


@pytest.mark.skipif(not has_compiler(), reason="the disk that fails is in C")
@pytest.mark.parametrize("which", range(len(DISKS)))
async def test_a_worker_meets_a_disk_that_fails_and_heals(ground: Any, tmp_path: Path, which: int) -> None:
    disk = disk_of(tmp_path, APP, 1)
    directory = tmp_path / "workers" / APP / "slot-1"
    directory.mkdir(parents=True)
    with writing_to(directory / "file", disk) as met:
        assert met.readline() == "0\n"
        done = await perform(planned(which), ground)
        assert met.readline() == f"{DISKS[which].error}\n"
    assert f" calls failed ({DISKS[which].says}) in " in done.confirmed
    assert "0 copies wiped" in done.confirmed


@pytest.mark.skipif(not has_compiler(), reason="the disk that fails is in C")
async def test_a_disk_that_no_call_met_did_not_fail(ground: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.faults.machines.OPEN_WITHIN", 0.0)
    with pytest.raises(ChaosFailed, match="worker-1 meets the failing disk"):
        await perform(planned(), ground)


def test_every_way_of_a_disk_is_dealt() -> None:
    assert WAYS_OF[FaultKind.FAILING_DISK] == len(DISKS)


def test_without_a_compiler_it_is_told_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_disk, "has_compiler", lambda: False)
    with pytest.raises(ChaosFailed, match="install one as `cc`"):
        FailingDisk(tmp_path / "disk", tmp_path)
