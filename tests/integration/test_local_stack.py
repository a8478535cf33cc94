"""The local stack on real Kafka: it comes up, is found again, and leaves nothing behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from streams.local import Companion, Stack, StackError, local_stack, running, start, stop
from streams.local.loopback import kafka_answers
from streams.local.parts import StackSpec
from streams.local.processes import GIVES_WAY_BY
from streams.local.stack import launch
from tests.integration.stacks import does_not_start, steadfaust
from tests.waiting import BOUND, eventually

BANK = Companion(
    [
        "python",
        "-c",
        "import os, http.server as h; h.test(h.SimpleHTTPRequestHandler, port=int(os.environ['PORT']))",
    ],
    ready="/",
)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_broker_alone_does_not_give_way(kafka: Stack) -> None:
    (broker,) = kafka.state.brokers
    assert psutil.Process(broker.pid).nice() == psutil.Process().nice()


def test_the_broker_answers_where_stack_json_says(kafka: Stack) -> None:
    written = json.loads((kafka.var.root / "stack.json").read_text())
    (broker,) = written["brokers"]
    assert written["bootstrap"] == f"127.0.0.1:{broker['port']}"
    assert asyncio.run(kafka_answers(broker["port"], brokers=1))
    assert psutil.pid_exists(written["supervisor_pid"])
    assert "Kafka Server started" in Path(broker["log"]).read_text()


def test_a_second_supervisor_is_refused(kafka: Stack) -> None:
    does_not_start(r"is in use by the supervisor with pid \d+", kafka.var.root)


def test_what_a_killed_supervisor_left_is_taken_over(tmp_path: Path) -> None:
    first = start(StackSpec(str(tmp_path), processes={"bank": BANK})).state
    os.kill(first.supervisor_pid, signal.SIGKILL)
    eventually(lambda: running(tmp_path) is None, "no stack runs")
    assert not gone(first.brokers[0].pid), "the broker is an orphan"
    said: list[str] = []
    with local_stack(tmp_path, say=said.append) as stack:
        pids = f"{first.brokers[0].pid}, {first.processes['bank'].pid}"
        assert (
            said[0]
            == f"supervisor {first.supervisor_pid} was killed: ending what it left running (pid {pids})"
        )
        assert gone(first.brokers[0].pid)
        assert gone(first.processes["bank"].pid)
        second = stack.state
        assert second.cluster_id == first.cluster_id
        assert asyncio.run(kafka_answers(second.brokers[0].port, brokers=1))
    assert gone(second.brokers[0].pid)
    assert gone(second.supervisor_pid)
    assert stack.var.read() is None


def test_the_death_of_a_broker_ends_the_stack(tmp_path: Path) -> None:
    said: list[str] = []
    with launch(StackSpec(str(tmp_path), processes={"bank": BANK}), said.append) as supervisor:
        stack = Stack(tmp_path)
        bank = stack.state.processes["bank"]
        with urllib.request.urlopen(bank.url, timeout=BOUND) as answer:
            assert answer.status == 200
        stack.signal_broker(1, signal.SIGKILL)
        assert supervisor.wait(timeout=BOUND) == 1
    assert gone(bank.pid)
    last = (tmp_path / "log" / "supervisor.log").read_text().splitlines()[-1]
    assert "error: broker 1 died (SIGKILL): " in last
    assert last.endswith(f"log: {tmp_path}/log/broker-1.log")
    with pytest.raises(StackError, match=r"is down: see .*supervisor\.log"):
        _ = stack.state


def test_a_starter_that_gives_up_stops_what_it_started(tmp_path: Path) -> None:
    def give_up(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt, match="bank"):
        launch(StackSpec(str(tmp_path), brokers=0, processes={"bank": BANK}), give_up)
    assert running(tmp_path) is None
    assert Stack(tmp_path).var.read() is None


def test_a_stack_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, signal, pathlib, streams.local as l\n"
        "from tests.integration.test_local_stack import BANK\n"
        "with l.local_stack(pathlib.Path(sys.argv[1]), brokers=0, processes={'bank': BANK}):\n"
        "    print('up', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        left = Stack(tmp_path).state
        starter.kill()
    eventually(lambda: gone(left.supervisor_pid) and gone(left.processes["bank"].pid), "both are gone")


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        does_not_start(f"^port {port} on 127.0.0.1 is taken", tmp_path, port=port)


async def test_of_three_brokers_a_killed_one_comes_back(tmp_path: Path) -> None:
    async with local_stack(tmp_path, brokers=3, listeners=["aside"], revive_after=0.0) as stack:
        brokers = stack.state.brokers
        assert [broker.id for broker in brokers] == [1, 2, 3]
        assert stack.bootstrap == ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
        for broker in brokers:
            assert await kafka_answers(broker.port, brokers=3)
        usual = psutil.Process().nice()
        assert {psutil.Process(broker.pid).nice() for broker in brokers} == {max(usual, GIVES_WAY_BY)}
        stack.signal_broker(2, signal.SIGKILL)
        eventually(lambda: stack.state.brokers[1].pid != brokers[1].pid, "another broker")
        revived = stack.state.brokers[1]
        assert (revived.port, revived.listeners) == (brokers[1].port, brokers[1].listeners)
        # Until it answers it has much to recover, and must not starve.
        assert psutil.Process(revived.pid).nice() == usual
        eventually(lambda: psutil.Process(revived.pid).nice() == max(usual, GIVES_WAY_BY), "it gives way")
        assert await kafka_answers(revived.port, brokers=3)


def test_the_command_knows_a_stack_that_runs(kafka: Stack) -> None:
    var = ("--var", str(kafka.var.root))
    assert steadfaust("up", *var).stdout.startswith(f"already up\nkafka    {kafka.bootstrap}")
    shown = json.loads(steadfaust("status", "--json", *var).stdout)
    assert (shown["up"], shown["bootstrap"]) == (True, kafka.bootstrap)


@pytest.mark.verify("ten seconds: PostgreSQL and S3 are started by the command, and one that runs is known")
def test_the_command_starts_a_stack_once_and_stops_it(tmp_path: Path) -> None:
    var = ("--var", str(tmp_path))
    assert steadfaust("status", *var).returncode == 3
    first, second = steadfaust("up", *var), steadfaust("up", *var)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert second.stdout.startswith("already up\nkafka    127.0.0.1:")
    shown = json.loads(steadfaust("status", "--json", *var).stdout)
    assert shown["up"] is True
    assert f"kafka    {shown['bootstrap']}" in first.stdout
    assert steadfaust("down", *var).stdout == "stopped\n"
    assert gone(shown["brokers"][0]["pid"])
    assert steadfaust("down", *var).stdout == "already down\n"


def test_an_error_of_the_command_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = steadfaust("up", "--var", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write to ")
    assert done.stderr.count("\n") == 1


def test_stop_ends_the_orphans_of_a_killed_supervisor(tmp_path: Path) -> None:
    left = start(StackSpec(str(tmp_path), brokers=0, processes={"bank": BANK})).state
    os.kill(left.supervisor_pid, signal.SIGKILL)
    eventually(lambda: running(tmp_path) is None, "no stack runs")
    assert not gone(left.processes["bank"].pid), "it is an orphan"
    assert stop(tmp_path) is True
    assert gone(left.processes["bank"].pid)
