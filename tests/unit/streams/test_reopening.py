"""What a lane does after an error, as a table."""

import pytest

from streams.errors import ClusterUnavailable, Fenced, OutcomeUnknown, Refused, StoreUnavailable
from streams.policy.reopening import QUARANTINE_AFTER, Quarantine, Reopen, Reopening

HERE, THERE = {b"p": b"1"}, {b"p": b"2"}


def reopening() -> Reopening:
    return Reopening(max_batch=2000, fenced_pause=3.0)


def test_a_lane_fenced_by_a_working_owner_keeps_its_size() -> None:
    policy = reopening()
    assert [policy.failed(Fenced(), {b"p": b"%d" % n}) for n in range(20)] == [Reopen(3.0)] * 20
    assert policy.limit == 2000


def test_a_lane_fenced_while_it_opens_keeps_its_size() -> None:
    policy = reopening()
    assert [policy.failed(Fenced(), None) for _ in range(20)] == [Reopen(3.0)] * 20
    assert policy.limit == 2000


def test_a_lane_fenced_in_one_place_has_smaller_transactions() -> None:
    policy = reopening()
    limits = []
    for _ in range(100):
        assert policy.failed(Fenced(), HERE) == Reopen(3.0)
        limits.append(policy.limit)
    assert limits[:6] == [2000, 250, 31, 3, 1, 1]
    assert policy.failed(KeyError(), HERE) == Reopen(0.2)  # the first of its kind here


def test_the_first_failure_makes_no_transaction_smaller() -> None:
    policy = reopening()
    assert policy.failed(OutcomeUnknown(), HERE) == Reopen(0.2)
    assert policy.failed(OutcomeUnknown(), THERE) == Reopen(0.2)
    assert policy.limit == 2000


def test_an_unforeseen_error_of_one_message_ends_in_quarantine() -> None:
    policy, error = reopening(), KeyError("a mistake of ours")
    limits = []
    while isinstance(policy.failed(error, HERE), Reopen):
        limits.append(policy.limit)
        assert len(limits) < 50
    assert limits[:5] == [2000, 250, 31, 3, 1]
    assert limits[-1] == 1
    assert len(limits) >= QUARANTINE_AFTER
    rests = [policy.failed(error, HERE) for _ in range(5)]
    assert rests == [Quarantine(120), Quarantine(240), Quarantine(480), Quarantine(600), Quarantine(600)]
    policy.committed()
    assert isinstance(policy.failed(error, HERE), Reopen)


def test_a_message_alone_fails_often_before_quarantine() -> None:
    policy = Reopening(max_batch=1, fenced_pause=3.0)
    verdicts = [policy.failed(KeyError(), HERE) for _ in range(QUARANTINE_AFTER + 1)]
    assert [isinstance(verdict, Reopen) for verdict in verdicts] == [True] * QUARANTINE_AFTER + [False]


@pytest.mark.parametrize("error", [Refused("the clock"), StoreUnavailable("the disk")])
@pytest.mark.parametrize("place", [HERE, None])
def test_what_somebody_has_to_mend_is_waited_out(error: Exception, place: object) -> None:
    policy = reopening()
    pauses = [policy.failed(error, place) for _ in range(1000)]
    assert pauses[:4] == [Reopen(0.2), Reopen(0.4), Reopen(0.8), Reopen(1.6)]
    assert pauses[-1] == Reopen(30.0)
    assert policy.limit == 2000


@pytest.mark.parametrize("error", [OutcomeUnknown(), ClusterUnavailable(), TimeoutError(), OSError()])
def test_an_outage_however_long_never_quarantines(error: Exception) -> None:
    policy = reopening()
    verdicts = [policy.failed(error, HERE) for _ in range(1000)]
    assert all(isinstance(verdict, Reopen) for verdict in verdicts)
    assert verdicts[-1] == Reopen(5.0)


def test_failing_while_opening_is_nobodys_fault() -> None:
    policy = reopening()
    assert all(isinstance(policy.failed(KeyError(), None), Reopen) for _ in range(100))
    assert policy.limit == 2000


def test_progress_lets_transactions_grow_again() -> None:
    policy = reopening()
    for _ in range(5):
        policy.failed(KeyError(), HERE)
    assert policy.limit == 1
    for _ in range(11):
        policy.committed()
    assert policy.limit == 2000


def test_a_failed_size_is_not_tried_again_at_once() -> None:
    policy = Reopening(max_batch=64, fenced_pause=3.0)
    for _ in range(2):
        policy.failed(Fenced(), HERE)
    limits = [policy.limit]
    for _ in range(50):
        policy.committed()
        limits.append(policy.limit)
    assert limits[:5] == [8, 16, 32, 36, 38]
    assert limits[-1] == 64
