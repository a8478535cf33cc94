"""What becomes of a failed message, as tables; and what holds for every policy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import PermanentError, SettingsError, TooLarge, TransientError, Undecodable
from streams.model.policy.retry import (
    RETRY_TOPICS,
    Decision,
    Expired,
    FailureKind,
    GiveUp,
    Later,
    PutOff,
    RetryPolicy,
    TryAgain,
    classify,
    decide,
    longest_path,
)

NOW = 1_700_000_000.0
DEFAULT = RetryPolicy()
TRANSIENT, PERMANENT, UNKNOWN = FailureKind.TRANSIENT, FailureKind.PERMANENT, FailureKind.UNKNOWN


def decided(
    attempt: int, kind: FailureKind = TRANSIENT, *, policy: RetryPolicy = DEFAULT, **more: float
) -> Decision:
    return decide(kind, attempt, policy=policy, now=NOW, **more)


class Busy(TransientError):
    """The outside has no time just now."""


class Gone(Busy):
    """The outside has been closed for good."""


class Torn(TransientError, PermanentError):
    """Two minds about itself."""


OWN = RetryPolicy(transient=(Undecodable,), permanent=(OSError, KeyError))
BUT_GONE = RetryPolicy(transient=(Busy,), permanent=(Gone,))
ONLY_GONE = RetryPolicy(transient=(Gone,), permanent=(Busy,))


@pytest.mark.parametrize(
    ("policy", "error", "kind"),
    [
        pytest.param(DEFAULT, TransientError(), TRANSIENT, id="transient"),
        pytest.param(DEFAULT, Busy(), TRANSIENT, id="a kind of transient"),
        pytest.param(DEFAULT, ConnectionResetError(), TRANSIENT, id="a lost connection"),
        pytest.param(DEFAULT, TimeoutError(), TRANSIENT, id="a timeout"),
        pytest.param(DEFAULT, OSError("no route to host"), TRANSIENT, id="the network"),
        pytest.param(DEFAULT, PermanentError(), PERMANENT, id="permanent"),
        pytest.param(DEFAULT, Undecodable(), PERMANENT, id="undecodable"),
        pytest.param(DEFAULT, KeyError("a mistake"), UNKNOWN, id="a mistake"),
        pytest.param(DEFAULT, ExceptionGroup("two", [TimeoutError(), KeyError()]), UNKNOWN, id="a group"),
        pytest.param(OWN, Undecodable(), TRANSIENT, id="its own transient before a default"),
        pytest.param(OWN, TooLarge(), PERMANENT, id="a default that it leaves"),
        pytest.param(OWN, ConnectionError(), PERMANENT, id="its own permanent before a default"),
        pytest.param(OWN, KeyError(), PERMANENT, id="its own permanent"),
        pytest.param(OWN, Busy(), TRANSIENT, id="another default that it leaves"),
        pytest.param(RetryPolicy(transient=(Exception,)), Undecodable(), TRANSIENT, id="however general"),
        pytest.param(BUT_GONE, Busy(), TRANSIENT, id="the general class"),
        pytest.param(BUT_GONE, Gone(), PERMANENT, id="the more specific class"),
        pytest.param(ONLY_GONE, Busy(), PERMANENT, id="the general class, permanent"),
        pytest.param(ONLY_GONE, Gone(), TRANSIENT, id="the more specific class, transient"),
        pytest.param(DEFAULT, Torn(), TRANSIENT, id="of two kinds the first"),
        pytest.param(RetryPolicy(permanent=(PermanentError,)), Torn(), PERMANENT, id="of two kinds its own"),
    ],
)
def test_of_the_policys_classes_and_defaults_the_most_specific_decides(
    policy: RetryPolicy, error: Exception, kind: FailureKind
) -> None:
    assert classify(error, policy) is kind


@pytest.mark.parametrize(
    ("attempt", "decision"),
    [
        (1, TryAgain()), (2, TryAgain()), (3, Later(tier=1, delay=10.0, due=NOW + 10)),
        (4, Later(tier=2, delay=60.0, due=NOW + 60)), (5, Later(tier=3, delay=300.0, due=NOW + 300)),
        (6, GiveUp("exhausted")), (7, GiveUp("exhausted")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [TRANSIENT, UNKNOWN])
def test_two_immediate_retries_then_each_tier_then_the_dead_letters(
    kind: FailureKind, attempt: int, decision: Decision
) -> None:
    assert decided(attempt, kind) == decision


@pytest.mark.parametrize("attempt", [1, 3, 6])
def test_a_permanent_error_is_never_tried_again(attempt: int) -> None:
    assert decided(attempt, PERMANENT) == GiveUp("permanent")
    assert decided(attempt, PERMANENT, deadline=NOW - 1) == GiveUp("permanent")


def test_an_unknown_error_is_permanent_if_the_policy_says_so() -> None:
    strict = RetryPolicy(unknown_is_permanent=True)
    assert decided(1, UNKNOWN, policy=strict) == GiveUp("unknown")
    assert decided(1, policy=strict) == TryAgain()


@pytest.mark.parametrize(
    ("attempt", "deadline", "decision"),
    [
        (1, NOW, TryAgain()),
        (1, NOW - 0.001, Expired()),
        (3, NOW + 10, Later(tier=1, delay=10.0, due=NOW + 10)),
        (3, NOW + 9.999, Expired()),
        (4, NOW + 10, Expired()),
        (6, NOW - 1, GiveUp("exhausted")),
    ],
)
def test_retry_after_the_deadline_expires_at_once(attempt: int, deadline: float, decision: Decision) -> None:
    assert decided(attempt, deadline=deadline) == decision


@pytest.mark.parametrize(
    ("attempt", "decision"),
    [
        (1, TryAgain()), (2, TryAgain()), (3, Later(tier=1, delay=10.0, due=NOW + 10)),
        (4, PutOff(60.0, NOW + 60)), (6, PutOff(60.0, NOW + 60)), (60, PutOff(60.0, NOW + 60)),
    ],
)  # fmt: skip
def test_while_the_outside_is_away_no_late_try_is_spent(attempt: int, decision: Decision) -> None:
    assert decided(attempt, away=60.0) == decision


def test_what_is_put_off_waits_as_the_longest_late_try() -> None:
    quick = RetryPolicy(delays=(1.0, 5.0, 2.0))
    assert decided(4, policy=quick, away=60.0) == PutOff(5.0, NOW + 5)


@pytest.mark.parametrize("kind", [PERMANENT, UNKNOWN])
@pytest.mark.parametrize("attempt", [1, 3, 4, 6])
def test_only_transient_errors_are_put_off(kind: FailureKind, attempt: int) -> None:
    assert decided(attempt, kind, away=60.0) == decided(attempt, kind)


def test_a_message_is_not_put_off_past_its_deadline() -> None:
    assert decided(4, deadline=NOW + 60, away=60.0) == PutOff(60.0, NOW + 60)
    assert decided(4, deadline=NOW + 59.9, away=60.0) == Expired()


def test_a_policy_may_have_no_retries_of_either_sort() -> None:
    never, late = (RetryPolicy(immediate=0, delays=delays) for delays in ((), (5.0,)))
    assert decided(1, policy=never) == decided(1, policy=never, away=60.0) == GiveUp("exhausted")
    assert decided(1, policy=late) == Later(1, 5.0, NOW + 5)


@pytest.mark.promise("policies")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"immediate": -1}, "immediate retries is -1: give 0 or more"),
        ({"immediate": 1.5}, "immediate retries is 1.5: give a whole number"),
        ({"immediate": "2"}, "immediate retries is '2': give a whole number"),
        ({"delays": (1.0, 0.0)}, "delay of retry 2 is 0.0 s: give a positive"),
        ({"delays": (-1.0,)}, "delay of retry 1 is -1.0 s"),
        ({"delays": (math.nan,)}, "delay of retry 1 is nan s"),
        ({"delays": (math.inf,)}, "delay of retry 1 is inf s"),
        (
            {"delays": (1e18,)},
            "delay of retry 1 is 1e[+]18 s, over ten years: give seconds, not milliseconds",
        ),
        ({"delays": ("5",)}, "delay of retry 1 is '5': give a number of seconds"),
        ({"delays": 5.0}, "the retry delays are 5.0: give a tuple of seconds"),
        ({"transient": ValueError}, "transient is <class 'ValueError'>: give a tuple of exception classes"),
        ({"permanent": ("ValueError",)}, "permanent is .*: give a tuple of exception classes"),
        (
            {"transient": (KeyError, OSError), "permanent": (OSError,)},
            "both transient and permanent: OSError",
        ),
    ],
)
def test_a_policy_that_cannot_work_is_refused_when_made(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        RetryPolicy(**wrong)  # type: ignore[arg-type]  # the table holds fields of all types


@pytest.mark.parametrize("attempt", [0, -1])
def test_an_attempt_that_was_not_made_cannot_have_failed(attempt: int) -> None:
    with pytest.raises(ValueError, match="give 1 or more"):
        decided(attempt)


POLICIES = st.builds(
    RetryPolicy,
    immediate=st.integers(0, 5),
    delays=st.lists(st.floats(0.001, 1e6), max_size=RETRY_TOPICS + 3).map(tuple),
    unknown_is_permanent=st.booleans(),
)
KINDS = st.sampled_from(FailureKind)
RETRIED = st.sampled_from((TRANSIENT, UNKNOWN))


@given(POLICIES, st.data())
def test_every_way_through_retries_has_as_many_attempts(policy: RetryPolicy, data: st.DataObject) -> None:
    """Whatever fails each time, whenever: a message is tried to the end, in tiers that follow each other."""
    kinds = RETRIED if not policy.unknown_is_permanent else st.just(TRANSIENT)
    now, tried_again = NOW, 0
    tiers: list[int] = []
    for attempt in range(1, policy.max_attempts):
        decision = decide(data.draw(kinds), attempt, policy=policy, now=now)
        if isinstance(decision, TryAgain):
            assert not tiers, "an immediate retry after a delayed one"
            tried_again += 1
        else:
            assert isinstance(decision, Later)
            assert decision.due - now == pytest.approx(decision.delay, abs=1e-6)
            tiers.append(decision.tier)
            now = decision.due
        now += data.draw(st.floats(0, 100))
    assert decide(data.draw(kinds), policy.max_attempts, policy=policy, now=now) == GiveUp("exhausted")
    assert tried_again == policy.immediate
    assert tiers == list(range(1, len(policy.delays) + 1))


@given(POLICIES, KINDS, st.integers(1, 20), st.floats(0, 4e9), st.none() | st.floats(0, 4e9))
def test_nothing_is_tried_early_or_after_its_deadline(
    policy: RetryPolicy, kind: FailureKind, attempt: int, now: float, deadline: float | None
) -> None:
    decision = decide(kind, attempt, policy=policy, now=now, deadline=deadline)
    if isinstance(decision, Later):
        assert decision.delay == policy.delays[decision.tier - 1]
        assert decision.due >= now + decision.delay
        assert deadline is None or decision.due <= deadline
    if isinstance(decision, TryAgain):
        assert deadline is None or now <= deadline


@given(POLICIES, KINDS, st.integers(1, 20), st.floats(0, 4e9), st.floats(0, 4e9))
def test_a_deadline_only_ever_ends_retries(
    policy: RetryPolicy, kind: FailureKind, attempt: int, now: float, deadline: float
) -> None:
    """It neither changes a decision that it allows, nor keeps a message from the dead letters."""
    without = decide(kind, attempt, policy=policy, now=now)
    bound = decide(kind, attempt, policy=policy, now=now, deadline=deadline)
    assert bound in (without, Expired())
    assert not isinstance(without, GiveUp) or bound == without


@given(POLICIES)
def test_the_longest_path_is_that_of_failing_every_time(policy: RetryPolicy) -> None:
    now = 0.0
    for attempt in range(1, policy.max_attempts + 1):
        decision = decide(TRANSIENT, attempt, policy=policy, now=now)
        now = decision.due if isinstance(decision, Later) else now
    assert longest_path(policy) == pytest.approx(now)
