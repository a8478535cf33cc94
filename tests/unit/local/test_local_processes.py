from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from streams.local.errors import BadDeclaration, NotReady, ProcessDied
from streams.local.patience import Patience
from streams.local.processes import (
    GIVES_WAY_BY,
    Child,
    Companion,
    declared,
    declared_buckets,
    declared_databases,
    why,
)

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
)


def so_long(seconds: float) -> Patience:
    return Patience("bank", seconds, list, pytest.fail)


async def never() -> bool:
    return False


def test_companions_are_read_from_the_project(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[tool.steadfaust.local.processes]\nbank = { command = ["python", "-m", "bank"] }\n')
    assert declared(pyproject) == {"bank": Companion(["python", "-m", "bank"], ready="/health")}


def test_without_a_project_there_are_no_companions(tmp_path: Path) -> None:
    assert declared(tmp_path / "pyproject.toml") == {}


@pytest.mark.parametrize("table", ['bank = "python -m bank"', 'bank = { comand = ["python"] }', "bank ="])
def test_a_declaration_that_does_not_read_is_refused_by_name(tmp_path: Path, table: str) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(f"[tool.steadfaust.local.processes]\n{table}\n")
    with pytest.raises(BadDeclaration, match=r"pyproject.toml, \[tool.steadfaust.local.processes\]: "):
        declared(pyproject)


def test_buckets_are_read_from_the_project(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    assert declared_buckets(pyproject) == ()
    pyproject.write_text('[tool.steadfaust.local]\nbuckets = ["gifts"]\n')
    assert (declared(pyproject), declared_buckets(pyproject)) == ({}, ("gifts",))
    pyproject.write_text('[tool.steadfaust.local]\nbuckets = "gifts"\n')
    with pytest.raises(BadDeclaration, match=r"pyproject.toml, buckets in \[tool.steadfaust.local\]: "):
        declared_buckets(pyproject)


def test_databases_are_read_from_the_project(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    assert declared_databases(pyproject) == ()
    pyproject.write_text('[tool.steadfaust.local]\ndatabases = ["gifts"]\n')
    assert declared_databases(pyproject) == ("gifts",)
    pyproject.write_text('[tool.steadfaust.local]\ndatabases = "gifts"\n')
    with pytest.raises(BadDeclaration, match=r"pyproject.toml, databases in \[tool.steadfaust.local\]: "):
        declared_databases(pyproject)


def test_this_project_has_a_database_for_orders() -> None:
    assert declared_databases(Path(__file__).parents[3] / "pyproject.toml") == ("orders",)


def test_this_project_has_a_bucket_for_payloads() -> None:
    assert declared_buckets(Path(__file__).parents[3] / "pyproject.toml") == ("event-payloads",)


async def test_a_process_that_dies_before_it_answers_says_why(tmp_path: Path) -> None:
    log = tmp_path / "bank.log"
    log.write_text("OutOfMemoryError of an earlier run\n")
    child = await Child.start("bank", ["python", "-c", "raise ValueError('no vault')"], log, {})
    with pytest.raises(ProcessDied, match=rf"bank died \(status 1\): ValueError: no vault; log: {log}"):
        await child.ready(never, so_long(30))


async def test_a_process_that_never_answers_is_given_up(tmp_path: Path) -> None:
    child = await Child.start("bank", ["sleep", "60"], tmp_path / "bank.log", {})
    with pytest.raises(NotReady, match="bank did not answer within 0 s: see "):
        await child.ready(never, so_long(0))
    await child.stop(grace=10, say=pytest.fail)


async def test_a_process_deaf_to_sigterm_is_killed_and_it_is_said(tmp_path: Path) -> None:
    log = tmp_path / "bank.log"
    child = await Child.start("bank", ["python", "-c", STUBBORN], log, {})

    async def deaf() -> bool:
        return "deaf" in log.read_text()

    await child.ready(deaf, so_long(30))
    said: list[str] = []
    await child.stop(grace=0.1, say=said.append)
    assert said == [f"bank did not stop within 0 s and is killed; log: {log}"]


async def test_a_program_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadDeclaration, match=r"bank cannot be started: .*no-such-program"):
        await Child.start("bank", ["no-such-program"], tmp_path / "bank.log", {})


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
    assert why(path).startswith(cause)


async def test_a_process_gives_way_with_all_its_threads(tmp_path: Path) -> None:
    two = "import threading, time; threading.Thread(target=time.sleep, args=[60]).start(); print('both')"
    log = tmp_path / "bank.log"
    child = await Child.start("bank", ["python", "-uc", two], log, {})

    async def both() -> bool:
        return "both" in log.read_text()

    await child.ready(both, so_long(30))
    child.give_way()
    threads = [each.id for each in psutil.Process(child.pid).threads()]
    assert len(threads) == 2
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {max(usual, GIVES_WAY_BY)}
    await child.stop(grace=10, say=pytest.fail)
    child.give_way()  # it has ended: nothing happens
