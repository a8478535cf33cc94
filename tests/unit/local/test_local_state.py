import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from streams.local.errors import StackBusy, StackError
from streams.local.state import RunningBroker, StackState, VarDir, find, started
from streams.local.supervisor import take_over

SLEEP = ["sleep", "600"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def left_by_a_killed_supervisor(*brokers: RunningBroker) -> StackState:
    return StackState(
        supervisor_pid=1, supervisor_started=0.0, ready=True, started_at="2026-01-01T00:00:00+00:00",
        cluster_id="id", bootstrap="127.0.0.1:1", brokers=list(brokers), processes={},
    )  # fmt: skip


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    var = VarDir(tmp_path)
    written = left_by_a_killed_supervisor(RunningBroker(1, 2, 3.0, 4, "log"))
    var.write(written)
    assert var.read() == written
    assert msgspec.json.decode(var.state_file.read_bytes())["brokers"][0]["pid"] == 2
    var.forget()
    assert var.read() is None


def test_a_state_file_of_another_version_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"pid": 1}')
    with pytest.raises(StackError, match=r"stack.json cannot be read .*: end the processes it names"):
        VarDir(tmp_path).read()


def test_two_supervisors_never_share_a_directory(tmp_path: Path) -> None:
    var = VarDir(tmp_path)
    with var.lock():
        assert var.supervised()
        assert var.holder() == os.getpid()
        with pytest.raises(StackBusy, match=f"in use by the supervisor with pid {os.getpid()}"):
            VarDir(tmp_path).lock()
    assert not var.supervised()
    assert var.holder() is None


@pytest.mark.stack
def test_a_process_is_known_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    since = started(sleeper.pid)
    assert find(sleeper.pid, since) is not None
    assert find(sleeper.pid, since - 60) is None, "the pid was used again by somebody else"


@pytest.mark.stack
def test_takeover_ends_what_is_ours_and_nothing_else(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(SLEEP) as ours:
        var = VarDir(tmp_path)
        brokers = [
            RunningBroker(1, ours.pid, started(ours.pid), 1, "log"),
            RunningBroker(2, sleeper.pid, started(sleeper.pid) - 60, 1, "log"),
        ]
        var.write(left_by_a_killed_supervisor(*brokers))
        said: list[str] = []
        take_over(var, said.append)
        assert ours.poll() is not None
    assert said == [f"supervisor 1 was killed: ending what it left running (pid {ours.pid})"]
    assert psutil.pid_exists(sleeper.pid)
    assert sleeper.poll() is None
    assert var.read() is None
