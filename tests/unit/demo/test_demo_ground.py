"""What a demo stands on: its folder, its PostgreSQL, its workers' logs."""

import fcntl
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from demo import run
from demo.drive import DemoPlan
from demo.evidence import DemoEvidence
from demo.ground import DemoFailed, clear
from demo.postgres import judge_postgres
from demo.purchases import outcome, purchases
from demo.worker_log import WorkerLog
from demo.workers import environment, free_ports, held_slots
from streams.host.slots import take_slot
from streams.local.loopback import HOST


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


def test_workers_find_demos_own_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unset: None) -> None:
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


class FailedDrive:
    def __init__(self, *_: object) -> None: ...

    async def run(self, _: Console) -> None:
        raise DemoFailed("no worker is left")


@pytest.mark.parametrize("keep", [True, False])
def test_what_failed_stays_up_where_it_is_to_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, keep: bool
) -> None:
    happened: list[str] = []
    for name, made in (
        ("stack_in", lambda *_: nullcontext()),
        ("Workers", lambda *_: nullcontext()),
        ("DemoEdge", lambda *_: nullcontext()),
        ("Drive", FailedDrive),
        ("_report", lambda *_, **__: SimpleNamespace(write=lambda _: happened.append("report"))),
        ("_stay", lambda *_: happened.append("stays up")),
    ):
        monkeypatch.setattr(run, name, made)
    plan = DemoPlan(10, tmp_path, keep=keep)
    with pytest.raises(DemoFailed, match="no worker is left"):
        run.run(plan, Console(quiet=True))
    assert happened == ["report", *(["stays up"] if keep else [])]


BOUGHT = purchases(40)
STATUSES = {purchase.order_id: outcome(purchase).value for purchase in BOUGHT}


def test_it_is_green_when_postgresql_says_what_kafka_says() -> None:
    assert judge_postgres(BOUGHT, DemoEvidence(tracked=dict(STATUSES), in_postgres=dict(STATUSES))).passed


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda found: found.pop(BOUGHT[0].order_id), id="missing"),
        pytest.param(lambda found: found.update({BOUGHT[0].order_id: "pending"}), id="pending"),
        pytest.param(lambda found: found.update({BOUGHT[0].order_id: "out_of_luck"}), id="another reason"),
        pytest.param(lambda found: found.update(stranger="confirmed"), id="one too many"),
    ],
)
def test_it_goes_red(wrong: Callable[[dict[str, str]], object]) -> None:
    found = dict(STATUSES)
    wrong(found)
    assert not judge_postgres(BOUGHT, DemoEvidence(tracked=dict(STATUSES), in_postgres=found)).passed


def test_what_nobody_has_looked_at_is_red() -> None:
    assert not judge_postgres(BOUGHT, DemoEvidence(tracked=dict(STATUSES))).passed


def assigned(*lanes: int) -> str:
    return line("lanes_assigned", active=lanes)


def line(event: str, **fields: object) -> str:
    return json.dumps({"event": event, **fields}) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> WorkerLog:
    (tmp_path / "worker.log").touch()
    return WorkerLog(tmp_path / "worker.log")


def write(log: WorkerLog, *text: str) -> None:
    with log.path.open("a") as file:
        file.write("".join(text))


ONE, TWO = line("lane_opened", lane=1), line("lane_opened", lane=2)


@pytest.mark.parametrize(
    ("text", "owned", "opened"),
    [
        ([], set(), set()),
        ([assigned(1, 2), assigned(2)], {2}, set()),
        ([assigned(1, 2), ONE, TWO], {1, 2}, {1, 2}),
        ([assigned(1, 2), ONE, TWO, line("lane_reopens", lane=1, error="Fenced")], {1, 2}, {2}),
        ([assigned(1, 2), ONE, TWO, line("lane_reopens", lane=1, error="Fenced"), ONE], {1, 2}, {1, 2}),
        ([assigned(1, 2), ONE, TWO, assigned(1)], {1}, {1}),
        ([assigned(1), TWO, assigned(1, 2)], {1, 2}, set()),
        ([assigned(1), ONE, line("lane_stopped", lane=1)], {1}, set()),
        ([assigned(1), ONE, line("lane_quarantined", lane=1)], {1}, set()),
        (["[2026-11-21] [WARNING] Heartbeat failed\n{not json}\n\xff\n", assigned(1)], {1}, set()),
        ([assigned(1), assigned(7)[:-5]], {1}, set()),
    ],
    ids=[
        *("empty", "the last assignment", "opened", "failed", "opened again", "taken away"),
        *("opened while leaving", "stopped", "quarantined", "lines of others", "half a line"),
    ],
)
def test_lanes_are_what_log_says(log: WorkerLog, text: list[str], owned: set[int], opened: set[int]) -> None:
    write(log, *text)
    assert (log.assigned, log.opened) == (owned, opened)


def test_half_a_line_waits_for_its_end(log: WorkerLog) -> None:
    write(log, assigned(7)[:20])
    assert log.assigned == frozenset()
    write(log, assigned(7)[20:])
    assert log.assigned == {7}


def test_events_since_a_mark_are_those_that_came_later(log: WorkerLog) -> None:
    write(log, ONE)
    mark = log.mark()
    write(log, TWO, line("lane_reopens", lane=1))
    assert [event["lane"] for event in log.events("lane_opened", mark)] == [2]
    assert [event["lane"] for event in log.events("lane_opened")] == [1, 2]


@pytest.mark.stack
def test_the_check_loads_nothing_of_the_services() -> None:
    """It must not come to its expectation by asking those whom it judges."""
    program = "import sys, demo.check; print(*(name for name in sys.modules if name.startswith('agents.')))"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    own = "cancellation commands gateway gateway.cards gateway.wire message_bases messages settings"
    assert set(loaded) == {f"agents.{name}" for name in own.split()}
