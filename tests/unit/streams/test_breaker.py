"""When a breaker lets calls through."""

import math

import pytest

from streams.errors import SettingsError
from streams.model.policy.breaker import Breaker, BreakerPolicy, BreakerState, BreakerTransition, Permit

NOW = 1_700_000_010.0  # where a bucket begins
POLICY = BreakerPolicy(
    window=30, minimum=4, failure_rate=0.5, open_for=10, max_open_for=60, probes=3, probe_timeout=60
)


def allowed(breaker: Breaker, now: float) -> Permit:
    permit = breaker.acquire(now)
    assert permit is not None
    return permit


def call(breaker: Breaker, now: float, *, ok: bool) -> BreakerState:
    breaker.record(allowed(breaker, now), ok=ok, now=now)
    return breaker.state


def opened(policy: BreakerPolicy = POLICY) -> Breaker:
    breaker = Breaker(policy)
    for _ in range(policy.minimum):
        call(breaker, NOW, ok=False)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_it_opens_at_the_failure_rate_and_not_below() -> None:
    breaker = Breaker(POLICY)
    assert [call(breaker, NOW, ok=ok) for ok in (True, True, True, False, False)] == [BreakerState.CLOSED] * 5
    assert call(breaker, NOW, ok=False) is BreakerState.OPEN


def test_failures_count_until_they_have_left_the_window() -> None:
    breaker = Breaker(POLICY)
    for _ in range(3):
        call(breaker, NOW, ok=False)
    assert call(breaker, NOW + 26.9, ok=False) is BreakerState.OPEN


def test_half_open_it_allows_so_many_probes_at_a_time() -> None:
    breaker = opened()
    probes = [allowed(breaker, NOW + 10) for _ in range(3)]
    assert breaker.acquire(NOW + 10) is None
    breaker.record(probes[0], ok=True, now=NOW + 11)
    assert breaker.allowed_from == 0
    assert breaker.acquire(NOW + 11) is not None
    assert breaker.acquire(NOW + 11) is None


def test_it_closes_after_its_probes_and_forgets_earlier_failures() -> None:
    breaker = opened()
    states = [call(breaker, NOW + 10, ok=ok) for ok in (True, True, True, False, False, False)]
    assert states == [BreakerState.HALF_OPEN] * 2 + [BreakerState.CLOSED] * 4


def test_each_failed_probe_doubles_the_bounded_time_open() -> None:
    breaker = opened()
    waits = []
    for _ in range(5):
        now = breaker.allowed_from
        assert call(breaker, now, ok=False) is BreakerState.OPEN
        waits.append(breaker.allowed_from - now)
    assert waits == [20, 40, 60, 60, 60]


def test_probes_that_never_report_make_room_for_others() -> None:
    breaker = opened()
    for second in range(3):
        allowed(breaker, NOW + 10 + second)
    assert breaker.allowed_from == NOW + 70
    assert breaker.acquire(NOW + 69.999) is None
    assert breaker.acquire(NOW + 70) is not None
    assert breaker.acquire(NOW + 70) is None


def test_a_call_that_was_not_made_makes_room_for_another() -> None:
    breaker = opened()
    probes = [allowed(breaker, NOW + 10) for _ in range(3)]
    breaker.give_back(probes[0])
    allowed(breaker, NOW + 10)
    assert breaker.acquire(NOW + 10) is None


def test_a_lane_that_opens_again_forgets_its_probes() -> None:
    breaker = opened()
    dropped = [allowed(breaker, NOW + 10) for _ in range(3)]
    breaker.start_half_open(NOW + 11)
    assert breaker.acquire(NOW + 11) is not None
    breaker.record(dropped[0], ok=False, now=NOW + 12)
    assert breaker.state is BreakerState.HALF_OPEN


def test_every_change_of_state_is_told_with_its_counts() -> None:
    told: list[BreakerTransition] = []
    breaker = Breaker(POLICY, told.append)
    for ok in (True, False, True, False):
        call(breaker, NOW, ok=ok)
    call(breaker, NOW + 10, ok=True)
    call(breaker, NOW + 11, ok=False)
    for _ in range(3):
        call(breaker, NOW + 21, ok=True)
    breaker.start_half_open(NOW + 22)
    breaker.start_half_open(NOW + 23)
    assert told == [
        BreakerTransition(BreakerState.CLOSED, BreakerState.OPEN, NOW, calls=4, failures=2),
        BreakerTransition(BreakerState.OPEN, BreakerState.HALF_OPEN, NOW + 10),
        BreakerTransition(BreakerState.HALF_OPEN, BreakerState.OPEN, NOW + 11, calls=2, failures=1),
        BreakerTransition(BreakerState.OPEN, BreakerState.HALF_OPEN, NOW + 21),
        BreakerTransition(BreakerState.HALF_OPEN, BreakerState.CLOSED, NOW + 21, calls=3, failures=0),
        BreakerTransition(BreakerState.CLOSED, BreakerState.HALF_OPEN, NOW + 22),
    ]


def test_a_clock_set_back_keeps_it_open_no_longer() -> None:
    breaker = opened()
    earlier = NOW - 86400
    assert breaker.acquire(earlier) is None
    assert breaker.allowed_from == earlier + 10
    probes = [allowed(breaker, earlier + 10) for _ in range(3)]
    assert len(probes) == 3
    earlier -= 86400
    assert breaker.acquire(earlier) is None
    assert breaker.allowed_from == earlier + 60


def test_a_clock_set_back_leaves_it_measuring() -> None:
    breaker = Breaker(POLICY)
    for _ in range(3):
        call(breaker, NOW, ok=False)
    earlier = NOW - 86400
    assert [call(breaker, earlier, ok=False) for _ in range(3)] == [BreakerState.CLOSED] * 3
    assert call(breaker, earlier + 40, ok=False) is BreakerState.CLOSED


def test_callers_with_an_earlier_clock_count_as_well() -> None:
    breaker = Breaker(POLICY)
    assert [call(breaker, NOW - second, ok=False) for second in range(4)][-1] is BreakerState.OPEN
    assert breaker.allowed_from == NOW + 10


@pytest.mark.promise("policies")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"window": 0}, "window of a breaker is 0 s: give a positive number of seconds"),
        ({"open_for": -1}, "open_for of a breaker is -1 s"),
        ({"probe_timeout": math.inf}, "probe_timeout of a breaker is inf s"),
        ({"max_open_for": math.nan}, "max_open_for of a breaker is nan s"),
        ({"max_open_for": 5}, r"max_open_for of 5 s is under open_for \(10 s\): raise it"),
        ({"minimum": 0}, "minimum of a breaker is 0: give 1 or more"),
        ({"probes": 0}, "probes of a breaker is 0: give 1 or more"),
        ({"open_for": 1e18}, "open_for of a breaker is .*over ten years"),
        ({"minimum": 1.5}, "minimum of a breaker is 1.5: give a whole number"),
        ({"failure_rate": 0}, "failure_rate of 0: give a fraction"),
        ({"failure_rate": 50}, "failure_rate of 50: give a fraction"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_when_made(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]  # the table holds fields of all types
