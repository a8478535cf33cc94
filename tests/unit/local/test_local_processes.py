"""Processes of the local stack: started, watched, ended."""

import asyncio
import os
import shutil
import socket
import struct
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from streams.local import local_stack, processes, stop
from streams.local.busy_timeout import BusyTimeout
from streams.local.errors import BadDeclaration, DiskFull, NotReady, PortTaken, ProcessDied, StackError
from streams.local.loopback import HOST, http_answers, kafka_answers, reserve
from streams.local.parts import StackSpec
from streams.local.processes import Child, Companion, declared, declared_buckets, declared_databases
from streams.local.supervisor import supervise
from tests.waiting import BOUND

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
)


@pytest.fixture
def pyproject(tmp_path: Path) -> Path:
    return tmp_path / "pyproject.toml"


class Bank:
    """Starts processes, whose log it reads."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "bank.log"

    async def start(self, *command: str) -> Child:
        return await Child.start("bank", list(command), self.log, {})

    async def ready(self, child: Child, word: str = "", *, within: float = BOUND) -> None:
        """Wait until the log has a word; nothing is never in it."""

        async def there() -> bool:
            return bool(word) and word in self.log.read_text()

        await child.ready(there, BusyTimeout("bank", within, list, pytest.fail))


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


def test_companions_are_read_from_the_project(pyproject: Path) -> None:
    assert declared(pyproject) == {}
    pyproject.write_text('[tool.steadfaust.local.processes]\nbank = { command = ["python", "-m", "bank"] }\n')
    assert declared(pyproject) == {"bank": Companion(["python", "-m", "bank"], ready="/health")}


@pytest.mark.parametrize("table", ['bank = "python -m bank"', 'bank = { comand = ["python"] }', "bank ="])
def test_a_declaration_that_does_not_read_is_refused_by_name(pyproject: Path, table: str) -> None:
    pyproject.write_text(f"[tool.steadfaust.local.processes]\n{table}\n")
    with pytest.raises(BadDeclaration, match=r"pyproject.toml, \[tool.steadfaust.local.processes\]: "):
        declared(pyproject)


@pytest.mark.parametrize(
    ("name", "read", "ours"),
    [("buckets", declared_buckets, "event-payloads"), ("databases", declared_databases, "orders")],
)
def test_buckets_and_databases_are_read_from_the_project(
    pyproject: Path, name: str, read: Callable[[Path], tuple[str, ...]], ours: str
) -> None:
    assert read(pyproject) == ()
    pyproject.write_text(f'[tool.steadfaust.local]\n{name} = ["gifts"]\n')
    assert (declared(pyproject), read(pyproject)) == ({}, ("gifts",))
    pyproject.write_text(f'[tool.steadfaust.local]\n{name} = "gifts"\n')
    with pytest.raises(BadDeclaration, match=rf"pyproject.toml, {name} in \[tool.steadfaust.local\]: "):
        read(pyproject)
    assert read(Path(__file__).parents[3] / "pyproject.toml") == (ours,)


@pytest.mark.stack
async def test_a_process_that_dies_before_it_answers_says_why(bank: Bank) -> None:
    bank.log.write_text("OutOfMemoryError of an earlier run\n")
    child = await bank.start("python", "-c", "raise ValueError('no vault')")
    with pytest.raises(ProcessDied, match=rf"bank died \(status 1\): ValueError: no vault; log: {bank.log}"):
        await bank.ready(child)


@pytest.mark.stack
async def test_a_process_that_never_answers_is_given_up(bank: Bank) -> None:
    child = await bank.start("sleep", "600")
    with pytest.raises(NotReady, match="bank did not answer within 0 s: see "):
        await bank.ready(child, within=0)
    await child.stop(grace=BOUND, say=pytest.fail)


@pytest.mark.stack
async def test_a_process_deaf_to_sigterm_is_killed_and_said(bank: Bank) -> None:
    child = await bank.start("python", "-c", STUBBORN)
    await bank.ready(child, "deaf")
    said: list[str] = []
    await child.stop(grace=0.1, say=said.append)
    assert said == [f"bank did not stop within 0 s and is killed; log: {bank.log}"]


async def test_a_program_that_does_not_exist_is_one_line(bank: Bank) -> None:
    with pytest.raises(BadDeclaration, match=r"bank cannot be started: .*no-such-program"):
        await bank.start("no-such-program")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("java.io.IOException: No space left on device\nshutting down", "the disk is full"),
        ("java.net.BindException: Address already in use", "its port is taken"),
        ("INFO started\nERROR it went wrong\nINFO bye", "ERROR it went wrong"),
        ("INFO started", "its log tells no error"),
        ("", "its log tells no error"),
    ],
)
def test_the_cause_of_a_death_is_read_from_the_log(tmp_path: Path, log: str, cause: str) -> None:
    path = tmp_path / "broker.log"
    path.write_text(log)
    assert processes.why(path).startswith(cause)


@pytest.mark.stack
async def test_a_process_gives_way_with_all_its_threads(bank: Bank) -> None:
    two = "import threading, time; threading.Thread(target=time.sleep, args=[600]).start(); print('both')"
    child = await bank.start("python", "-uc", two)
    await bank.ready(child, "both")
    child.give_way()
    threads = [each.id for each in psutil.Process(child.pid).threads()]
    assert len(threads) == 2
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {max(usual, processes.GIVES_WAY_BY)}
    await child.stop(grace=BOUND, say=pytest.fail)
    child.give_way()  # it has ended: nothing happens


Usage = namedtuple("Usage", "total used free")


def test_full_disk_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10 << 30, 10 << 30, 300 << 20))
    with pytest.raises(DiskFull, match=f"only 300 MiB are free where {tmp_path} is, Kafka needs 1024"):
        supervise(StackSpec(str(tmp_path)), say=pytest.fail)


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StackError, match=r"cannot write to .*supervisor\.log"), local_stack(file):
        pytest.fail("it started")


def test_stopping_what_is_down_does_nothing(tmp_path: Path) -> None:
    assert stop(tmp_path / "never-used") is False


def test_a_reserved_port_is_bound_by_its_user_alone() -> None:
    reserved = reserve()
    with socket.create_server((HOST, reserved.port)), pytest.raises(PortTaken, match=f"port {reserved.port}"):
        reserve(reserved.port)
    reserved.release()


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    reserved = reserve()
    reserved.release()
    assert 20_000 <= reserved.port < 32_000


@pytest.mark.parametrize(("seen", "wanted", "ready"), [(1, 1, True), (2, 3, False), (3, 3, True)])
async def test_a_broker_answers_once_it_sees_all_brokers(seen: int, wanted: int, ready: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        key, version, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
        assert (key, version) == (3, 1)
        writer.write(struct.pack(">iii", 8, correlation, seen))
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await kafka_answers(port, wanted) is ready


async def test_a_closed_port_does_not_answer() -> None:
    reserved = reserve()
    try:
        assert not await kafka_answers(reserved.port, 1)
        assert not await http_answers(reserved.port, "/health")
    finally:
        reserved.release()


@pytest.mark.parametrize(("status", "ready"), [(b"200 OK", True), (b"503 Not yet", False)])
async def test_a_companion_answers_with_status_200(status: bytes, ready: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /health ")
        writer.write(b"HTTP/1.0 " + status + b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        assert await http_answers(server.sockets[0].getsockname()[1], "/health") is ready
