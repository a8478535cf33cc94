"""Which gap between a lane's commits is laid to which fault, which is too long, and the report of a run."""

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from good_post import Written
from good_run import BEGAN, good_run

from chaos.check import CheckReport as Checked
from chaos.faults.perform import Slowness, used_by_main_thread
from chaos.judges.stalls import CommitGap, judge_stalls, stalls
from chaos.report import RunReport, encode, markdown
from chaos.rig.commits import RESOLUTION, CommitWatch
from chaos.rig.records import CommitTimes, Happened, RunRecords
from demo.findings import Finding
from streams.local.busy_timeout import Used
from streams.ports import TP, Batch


def fault(kind: str, began: float, ended: float | None, slowed: float = 1.0) -> Happened:
    """Times in seconds after the load began."""
    until = None if ended is None else BEGAN + ended
    return Happened(kind=kind, target="it", began=BEGAN + began, ended=until, confirmed="seen", slowed=slowed)


def run_with(*faults: Happened, lanes: int = 1, session_timeout: float = 6.0) -> RunRecords:
    changes = {"faults": list(faults), "lanes": lanes, "session_timeout": session_timeout}
    return msgspec.structs.replace(good_run(), load=(BEGAN, BEGAN + 60), **changes)


def steady_but(*gaps: tuple[float, float]) -> list[float]:
    """Commits five times a second, but for these times."""
    times = [fifth / 5 for fifth in range(300)]
    return [BEGAN + time for time in times if not any(begin < time < end for begin, end in gaps)]


def found(run: RunRecords, *lanes: list[float]) -> dict[str, CommitGap]:
    return {stall.kind: stall for stall in stalls(run, CommitTimes(seen=dict(enumerate(lanes))))}


def lasts(seconds: float) -> object:
    return pytest.approx(seconds, abs=0.3)


def passes(run: RunRecords, *lanes: list[float]) -> bool:
    return judge_stalls(stalls(run, CommitTimes(seen=dict(enumerate(lanes))))).passed


@pytest.mark.parametrize(
    ("kind", "seconds", "passed"),
    [
        ("kill_worker", 9.5, True), ("kill_worker", 10.5, False), ("kill_at_point", 10.5, False),
        ("kill_in_recovery", 19.5, True), ("kill_in_recovery", 20.5, False), ("rolling_restart", 5.5, True),
        ("rolling_restart", 6.5, False), ("kill_broker", 25.0, True),
    ],
)  # fmt: skip
def test_a_stall_has_the_limit_of_its_fault(kind: str, seconds: float, *, passed: bool) -> None:
    lane = steady_but((20, 20 + seconds))
    run = run_with(fault(kind, 20, 28))
    assert found(run, lane)[kind].seconds == lasts(seconds)
    assert passes(run, lane) is passed


KILLED, SLOWED = fault("kill_worker", 20, None), fault("kill_worker", 20, 34, slowed=2)
BETWEEN = (fault("kill_broker", 5, 15), fault("kill_worker", 20, 32), fault("add_worker", 33, 36))
AFTER_A_BROKER = (fault("kill_broker", 10, 20), fault("kill_worker", 20.4, 25))


@pytest.mark.parametrize(
    ("faults", "gap", "passed"),
    [
        pytest.param([fault("kill_worker", 20, 32)], (19.2, 31), False, id="begins before it was noted"),
        pytest.param([fault("kill_worker", 5, 8)], (40, 55), True, id="at another time"),
        pytest.param(
            [fault("kill_worker", 20, 28), fault("kill_broker", 22, 30)], (20, 33), True, id="two at a time"
        ),
        pytest.param(BETWEEN, (20, 32), False, id="others before and after are no excuse"),
        pytest.param(
            [KILLED, fault("add_worker", 31, 36)], (20, 33), False, id="too long before the next fault"
        ),
        pytest.param(AFTER_A_BROKER, (15, 29), True, id="it counts since the one before has healed"),
        pytest.param(AFTER_A_BROKER, (15, 31), False, id="too long since the one before has healed"),
        pytest.param([KILLED], (20, 29), True, id="taken over in time"),
        pytest.param([KILLED], (20, 31), False, id="taken over too late"),
        pytest.param([fault("rolling_restart", 20, 31, slowed=1.5)], (20, 29.5), False, id="half as slow"),
        pytest.param([fault("rolling_restart", 20, 31, slowed=2)], (20, 29.5), True, id="twice as slow"),
        pytest.param([SLOWED], (20, 33), True, id="only what workers need is slower"),
        pytest.param([SLOWED], (20, 35), False, id="6 s are the clock's"),
    ],
)
def test_a_stall_is_judged(faults: Sequence[Happened], gap: tuple[float, float], *, passed: bool) -> None:
    assert passes(run_with(*faults), steady_but(gap)) is passed


def test_a_stall_belongs_to_the_fault_it_begins_with() -> None:
    run = run_with(fault("kill_worker", 20, 23), fault("kill_broker", 25, 40))
    stalled = found(run, steady_but((26, 39)))
    assert stalled["kill_worker"].seconds < 1
    assert stalled["kill_broker"].seconds == lasts(13)
    beside = run_with(fault("kill_worker", 20, 28), fault("kill_broker", 22, 30))
    assert not found(beside, steady_but((20, 33)))["kill_worker"].alone
    assert found(run_with(*BETWEEN), steady_but((20, 32)))["kill_worker"].alone
    elsewhere = found(run_with(fault("kill_worker", 5, 8)), steady_but((40, 55)))
    assert elsewhere["kill_worker"].seconds < 1
    assert elsewhere[""].seconds == lasts(15)


def test_the_longest_of_all_lanes_counts() -> None:
    run = run_with(fault("kill_worker", 20, 28), lanes=2)
    stall = found(run, steady_but((20, 23)), steady_but((20, 27)))["kill_worker"]
    assert (stall.lane, stall.seconds) == (1, lasts(7))


def test_faults_that_follow_each_other_closely_are_each_judged() -> None:
    """As a driver does it: the next one comes as soon as the last one has healed."""
    kills = [fault("kill_worker", 5 + 12 * n, 5 + 12 * n + 11.5) for n in range(4)]
    lane = steady_but(*((5 + 12 * n, 5 + 12 * n + 11) for n in range(4)))
    judged = [stall for stall in stalls(run_with(*kills), CommitTimes(seen={0: lane})) if stall.kind]
    assert [stall.too_long for stall in judged] == [True] * 4


def test_the_limit_goes_with_the_session_timeout() -> None:
    assert passes(run_with(fault("kill_worker", 20, 40), session_timeout=10), steady_but((20, 33)))


def test_without_any_lane_there_is_nothing_to_judge_by() -> None:
    assert not passes(run_with(lanes=0))


def test_it_says_the_longest_of_each_kind() -> None:
    run = run_with(fault("kill_worker", 20, 28), fault("rolling_restart", 40, 50))
    says = judge_stalls(stalls(run, CommitTimes(seen={0: steady_but((20, 27), (41, 47))}))).says
    assert "kill_worker 7." in says
    assert "rolling_restart 6." in says
    assert "limit 10 s, 1 of 1" in says


TOPIC = "app-lane-changelog"


def arrived(*partitions: int, records: int = 1) -> list[Batch]:
    written = [Written(TOPIC, 0, offset, b"k", b"v") for offset in range(records)]
    return [Batch(TP(TOPIC, partition), written, records) for partition in partitions]


def test_commits_are_noted_by_their_lane_and_close_ones_once() -> None:
    watch = CommitWatch("", "app", partitions=4, lanes=3)
    watch.note(arrived(1), 10.0)
    watch.note(arrived(2, records=0), 11.0)  # a marker alone is no commit
    for tenth in range(4):
        watch.note(arrived(0, 3), 10 + tenth * RESOLUTION / 2)
    assert watch.commits().seen == {0: [10.0, 10 + RESOLUTION], 1: [10.0], 2: []}


Figures = Mapping[int, tuple[float, float]]


def factor(before: Figures, after: Figures) -> float:
    figures = before
    slowness = Slowness(lambda: list(figures), lambda pid: Used(*figures[pid]))
    figures = after
    return slowness.factor()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({1: (5.0, 1.0)}, {1: (7.0, 1.0)}, 1.0),
        ({1: (5.0, 1.0)}, {1: (9.0, 3.0)}, 1.5),
        ({1: (5.0, 1.0)}, {1: (5.0, 1.0)}, 1.0),
        ({1: (5.0, 1.0)}, {1: (6.0, 40.0)}, 2.0),
    ],
    ids=["never waited", "waited half as long as it ran", "did nothing", "hardly ran: at most doubled"],
)
def test_waiting_is_counted_beside_running(before: Figures, after: Figures, expected: float) -> None:
    assert factor(before, after) == expected


def test_only_the_main_thread_counts() -> None:
    pid = os.getpid()
    assert threading.get_native_id() == pid, "the tests run in the main thread"

    def burn(seconds: float) -> None:
        began = time.thread_time()
        while time.thread_time() - began < seconds:
            pass

    other = threading.Thread(target=burn, args=(0.3,))
    before = used_by_main_thread(pid)
    other.start()
    other.join()
    beside = used_by_main_thread(pid)
    burn(0.3)
    after = used_by_main_thread(pid)
    assert beside.ran - before.ran < after.ran - beside.ran


KILL = Happened(kind="kill_worker", target="worker-1", began=1010.0, ended=1016.5, confirmed="pid 7 ended")
NEVER = Happened(kind="remove_worker", target="worker-2", began=1030.0, ended=None, confirmed="")
RUN = msgspec.structs.replace(good_run(), seed=7, load=(1000.0, 1060.0), faults=[KILL, NEVER])
GREEN = Finding(name="every order settled exactly once", passed=True, says="100 orders")
RED = Finding(name="no dead letters", passed=False, says="3 in a topic")
STALL = CommitGap("kill_worker", alone=True, lane=2, began=1010.0, seconds=6.3, limit=10.0)


def report(*findings: Finding, problems: list[str] | None = None) -> RunReport:
    checked = Checked(all(each.passed for each in findings), list(findings), [STALL], 1.0)
    return RunReport(
        problems=problems or [], left_out=2, seconds=200.0, sent=120, again=3, run=RUN, checked=checked
    )


def test_it_passes_when_driver_and_checker_found_nothing() -> None:
    assert report(GREEN).passed
    assert "passed: seed 7" in markdown(report(GREEN))


UNCHECKED = msgspec.structs.replace(report(GREEN), checked=None)


@pytest.mark.parametrize(
    "red",
    [report(GREEN, RED), report(GREEN, problems=["worker-1 hung"]), UNCHECKED],
    ids=["checker", "driver", "nothing checked"],
)
def test_it_fails_otherwise_and_tells_how_to_repeat_it(red: RunReport) -> None:
    assert not red.passed
    assert json.loads(encode(red))["passed"] is False
    assert "FAILED: seed 7" in markdown(red)
    assert "SEED=7 repeats it" in markdown(red)


def test_the_document_has_every_fault_finding_problem_and_stall() -> None:
    text = markdown(report(GREEN, RED, problems=["worker-1 hung at the end"]))
    assert "- 10 s: `kill_worker` of worker-1, healed after 6.5 s: pid 7 ended\n" in text
    assert "- 30 s: `remove_worker` of worker-2, never healed: NOT CONFIRMED\n" in text
    assert "- **pass: every order settled exactly once.** 100 orders" in text
    assert "- **FAIL: no dead letters.** 3 in a topic" in text
    assert "- **FAIL:** worker-1 hung at the end" in text
    assert "| `kill_worker` | 2 | 6.3 | yes |" in text
    assert "2 faults of 2 kinds (2 more were planned)" in text
