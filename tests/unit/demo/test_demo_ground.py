import fcntl
import os
import socket
from pathlib import Path

import pytest

from demo.ground import DemoFailed, clear
from demo.workers import environment, free_ports, held_slots
from streams.local.loopback import HOST
from streams.runtime.faust.slots import take_slot


def silent(_line: str) -> None:
    pass


def leave_a_run(var: Path) -> None:
    clear(var, silent)
    for name in ("kafka", "log", "gateway"):
        (var / name).mkdir()
        (var / name / "file").touch()
    (var / "report.json").touch()


def test_a_run_starts_from_nothing_and_says_so(tmp_path: Path) -> None:
    leave_a_run(tmp_path)
    lines: list[str] = []
    clear(tmp_path, lines.append)
    assert [path.name for path in tmp_path.iterdir()] == ["made-by-the-demo"]
    assert lines == [f"removing the last demo's data in {tmp_path}"]


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    clear(tmp_path / "new" / "one", silent)
    assert (tmp_path / "new" / "one").is_dir()


def test_what_no_demo_made_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with pytest.raises(DemoFailed, match="holds data that no demo made"):
        clear(tmp_path, silent)
    assert (tmp_path / "kafka").is_dir()


def test_files_of_somebody_else_stay(tmp_path: Path) -> None:
    leave_a_run(tmp_path)
    (tmp_path / "notes.txt").touch()
    clear(tmp_path, silent)
    assert (tmp_path / "notes.txt").exists()


def test_the_data_of_a_worker_that_runs_is_not_removed(tmp_path: Path) -> None:
    leave_a_run(tmp_path)
    slot = take_slot(tmp_path / "workers" / "steadfaust")
    try:
        with pytest.raises(DemoFailed, match=r"workers still run in .*: end pid \d+ first"):
            clear(tmp_path, silent)
    finally:
        slot.release()
    clear(tmp_path, silent)


def test_held_slots_are_told_from_left_ones(tmp_path: Path) -> None:
    first, second = (take_slot(tmp_path / "workers" / "steadfaust") for _ in range(2))
    first.release()
    assert list(held_slots(tmp_path)) == [1]
    with (first.directory / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # looking leaves nothing locked
    second.release()


def test_ports_in_a_row_are_all_free() -> None:
    first = free_ports(3)
    with socket.socket() as taken:
        taken.bind((HOST, first + 1))
        taken.listen()
        assert free_ports(3) > first + 1


def test_workers_find_the_demos_own_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STEADFAUST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STEADFAUST_BOOTSTRAP", "elsewhere:9092")
    monkeypatch.setenv("STEADFAUST_GATEWAY_URL", "http://elsewhere/")
    monkeypatch.setenv("STEADFAUST_LANES", "4")
    given = environment(tmp_path, STEADFAUST_CHOREOGRAPHY="payment-first")
    mine = {name: value for name, value in given.items() if name.startswith("STEADFAUST_")}
    assert mine == {
        "STEADFAUST_LANES": "4",
        "STEADFAUST_VAR": str(tmp_path),
        "STEADFAUST_GATEWAY_ATTEMPTS": "1",
        "STEADFAUST_RETRY_DELAYS": "0.5,1,2",
        "STEADFAUST_OUTAGE_PATIENCE": "0",
        "STEADFAUST_CHOREOGRAPHY": "payment-first",
    }
