"""Which gap between a lane's commits is laid to which fault, and which of them is too long."""

from collections.abc import Sequence

import msgspec
import pytest
from good_run import BEGAN, good_run

from chaos.judges.stalls import CommitGap, judge_stalls, stalls
from chaos.rig.records import CommitTimes, Happened, RunRecords


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
