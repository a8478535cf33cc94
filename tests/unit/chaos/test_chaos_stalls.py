"""Which gap between a lane's commits is laid to which fault, and which of them is too long."""

from __future__ import annotations

import msgspec
import pytest
from good_run import BEGAN, good_run

from chaos.records import Commits, Happened, Run
from chaos.stalls import Stall, judge_stalls, stalls


def fault(kind: str, began: float, ended: float | None, slowed: float = 1.0) -> Happened:
    """Times in seconds after the load began."""
    until = None if ended is None else BEGAN + ended
    return Happened(kind=kind, target="it", began=BEGAN + began, ended=until, confirmed="seen", slowed=slowed)


def run_with(*faults: Happened, lanes: int = 1, session_timeout: float = 6.0) -> Run:
    return msgspec.structs.replace(
        good_run(),
        faults=list(faults),
        lanes=lanes,
        session_timeout=session_timeout,
        load=(BEGAN, BEGAN + 60),
    )


def steady_but(*gaps: tuple[float, float]) -> list[float]:
    """Commits five times a second, but for these times."""
    times = [fifth / 5 for fifth in range(300)]
    return [BEGAN + time for time in times if not any(begin < time < end for begin, end in gaps)]


def found(run: Run, *lanes: list[float]) -> dict[str, Stall]:
    return {stall.kind: stall for stall in stalls(run, Commits(seen=dict(enumerate(lanes))))}


def passes(run: Run, *lanes: list[float]) -> bool:
    return judge_stalls(stalls(run, Commits(seen=dict(enumerate(lanes))))).passed


@pytest.mark.parametrize(
    ("kind", "seconds", "passed"),
    [
        ("kill_worker", 9.5, True),
        ("kill_worker", 10.5, False),
        ("kill_at_point", 10.5, False),
        ("kill_in_recovery", 19.5, True),
        ("kill_in_recovery", 20.5, False),
        ("rolling_restart", 5.5, True),
        ("rolling_restart", 6.5, False),
        ("kill_broker", 25.0, True),
    ],
)
def test_a_stall_has_the_limit_of_its_fault(kind: str, seconds: float, *, passed: bool) -> None:
    lane = steady_but((20, 20 + seconds))
    run = run_with(fault(kind, 20, 28))
    assert found(run, lane)[kind].seconds == pytest.approx(seconds, abs=0.3)
    assert passes(run, lane) is passed


def test_a_stall_may_begin_shortly_before_its_fault() -> None:
    assert not passes(run_with(fault("kill_worker", 20, 32)), steady_but((19.2, 31)))


def test_a_stall_of_another_time_is_another_stall() -> None:
    run = run_with(fault("kill_worker", 5, 8))
    lane = steady_but((40, 55))
    assert found(run, lane)["kill_worker"].seconds < 1
    assert found(run, lane)[""].seconds == pytest.approx(15, abs=0.3)
    assert passes(run, lane)


def test_the_longest_of_all_lanes_counts() -> None:
    run = run_with(fault("kill_worker", 20, 28), lanes=2)
    stall = found(run, steady_but((20, 23)), steady_but((20, 27)))["kill_worker"]
    assert (stall.lane, stall.seconds) == (1, pytest.approx(7, abs=0.3))


def test_beside_another_fault_a_stall_is_not_judged() -> None:
    run = run_with(fault("kill_worker", 20, 28), fault("kill_broker", 22, 30))
    lane = steady_but((20, 33))
    assert not found(run, lane)["kill_worker"].alone
    assert passes(run, lane)


def test_faults_before_and_after_do_not_excuse_a_stall() -> None:
    run = run_with(fault("kill_broker", 5, 15), fault("kill_worker", 20, 32), fault("add_worker", 33, 36))
    lane = steady_but((20, 32))
    assert found(run, lane)["kill_worker"].alone
    assert not passes(run, lane)


def test_faults_that_follow_each_other_closely_are_each_judged() -> None:
    """As a driver does it: the next one comes as soon as the last one has healed."""
    kills = [fault("kill_worker", 5 + 12 * n, 5 + 12 * n + 11.5) for n in range(4)]
    lane = steady_but(*((5 + 12 * n, 5 + 12 * n + 11) for n in range(4)))
    judged = [stall for stall in stalls(run_with(*kills), Commits(seen={0: lane})) if stall.kind]
    assert [stall.too_long for stall in judged] == [True] * 4


def test_a_fault_after_too_long_a_stall_excuses_nothing() -> None:
    run = run_with(fault("kill_worker", 20, None), fault("add_worker", 31, 36))
    assert not passes(run, steady_but((20, 33)))


def test_an_ongoing_stall_counts_from_the_last_healing() -> None:
    run = run_with(fault("kill_broker", 10, 20), fault("kill_worker", 20.4, 25))
    assert found(run, steady_but((15, 29)))["kill_worker"].seconds == pytest.approx(9, abs=0.3)
    assert passes(run, steady_but((15, 29)))
    assert not passes(run, steady_but((15, 31)))


def test_a_stall_belongs_to_the_fault_it_begins_with() -> None:
    run = run_with(fault("kill_worker", 20, 23), fault("kill_broker", 25, 40))
    lane = steady_but((26, 39))
    assert found(run, lane)["kill_worker"].seconds < 1
    assert found(run, lane)["kill_broker"].seconds == pytest.approx(13, abs=0.3)


def test_a_lost_worker_is_taken_over_within_the_limit() -> None:
    run = run_with(fault("kill_worker", 20, None))
    assert passes(run, steady_but((20, 29)))
    assert not passes(run, steady_but((20, 31)))


def test_a_lane_without_commits_stalls_until_the_end() -> None:
    run = run_with(fault("kill_worker", 20, None))
    assert found(run, steady_but((20, 60)))["kill_worker"].seconds == pytest.approx(40, abs=0.3)


def test_the_limit_goes_with_the_session_timeout() -> None:
    assert passes(run_with(fault("kill_worker", 20, 40), session_timeout=10), steady_but((20, 33)))


def test_slow_processors_stretch_what_workers_need() -> None:
    lane = steady_but((20, 29.5))
    assert not passes(run_with(fault("rolling_restart", 20, 31, slowed=1.5)), lane)
    assert passes(run_with(fault("rolling_restart", 20, 31, slowed=2)), lane)
    assert passes(run_with(fault("kill_worker", 20, 34, slowed=2)), steady_but((20, 33)))
    assert not passes(run_with(fault("kill_worker", 20, 34, slowed=2)), steady_but((20, 35))), (
        "6 s are the clock's"
    )


def test_without_any_lane_there_is_nothing_to_judge_by() -> None:
    assert not passes(run_with(lanes=0))


def test_it_says_the_longest_of_each_kind() -> None:
    run = run_with(fault("kill_worker", 20, 28), fault("rolling_restart", 40, 50))
    says = judge_stalls(stalls(run, Commits(seen={0: steady_but((20, 27), (41, 47))}))).says
    assert "kill_worker 7." in says
    assert "rolling_restart 6." in says
    assert "limit 10 s, 1 of 1" in says
