"""When a lane rests, opens again, or is given away: as tables."""

import pytest

from streams.engine.way.commit import LONGEST_REST, rest
from streams.errors import (
    ClusterUnavailable,
    Fenced,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    StoreUnavailable,
)
from streams.model.policy.fitness import GIVE_AWAY_AFTER, PAUSE, PAUSE_CAP, Fitness
from streams.model.policy.reopening import QUARANTINE_AFTER, Quarantine, Reopen, Reopening, is_expected

pytestmark = pytest.mark.promise("unfit-worker")


class Worker:
    """Looks each five seconds."""

    def __init__(self) -> None:
        self.fitness = Fitness()
        self.now = 1000.0
        self.clock = 1_800_000_000.0

    def for_seconds(self, seconds: float, *, waited: float = 0.0, others: bool = True) -> list[float]:
        told = []
        end = self.now + seconds
        while self.now < end:
            self.now += 5.0
            waited += 5.0 if waited else 0.0
            has_lanes = self.fitness.fit
            if self.fitness.look(
                waited=waited if has_lanes else 0.0,
                others=others,
                monotonic=self.now,
                wall=self.clock + self.now,
            ):
                told.append(self.now)
        return told


def test_lanes_that_wait_long_for_the_machine_are_given_away() -> None:
    worker = Worker()
    assert worker.for_seconds(GIVE_AWAY_AFTER - 10, waited=1.0) == []
    assert worker.fitness.fit
    assert len(worker.for_seconds(20, waited=GIVE_AWAY_AFTER)) == 1
    assert not worker.fitness.fit


def test_alone_it_keeps_its_lanes() -> None:
    worker = Worker()
    assert worker.for_seconds(10_000, waited=1.0, others=False) == []


def test_it_asks_again_ever_more_seldom() -> None:
    worker = Worker()
    told = worker.for_seconds(20_000, waited=GIVE_AWAY_AFTER)
    away = [asked - given for given, asked in zip(told[::2], told[1::2], strict=False)]
    assert away[:5] == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE, PAUSE_CAP]


def test_a_clock_that_was_set_is_tried_at_once() -> None:
    worker = Worker()
    worker.for_seconds(20, waited=GIVE_AWAY_AFTER)
    assert not worker.fitness.fit
    assert worker.for_seconds(20) == []
    worker.clock -= 3700
    assert len(worker.for_seconds(5)) == 1
    assert worker.fitness.fit


def test_after_a_good_while_pauses_are_short_again() -> None:
    worker = Worker()
    worker.for_seconds(2 * PAUSE + 10, waited=GIVE_AWAY_AFTER)
    worker.for_seconds(10 * PAUSE)
    assert worker.fitness.fit
    given, asked = worker.for_seconds(PAUSE + 20, waited=GIVE_AWAY_AFTER)[:2]
    assert asked - given == PAUSE


@pytest.mark.parametrize(
    ("spent", "since", "linger", "expected"),
    [
        pytest.param(0.03, 0.0, 0.0, 0.09, id="three times as long as the last one took"),
        pytest.param(0.03, 0.01, 0.0, 0.08, id="what has passed since counts"),
        pytest.param(5.0, 0.0, 0.0, LONGEST_REST, id="never longer than that"),
        pytest.param(0.03, 0.05, 0.05, 0.05, id="as long as is set at least"),
        pytest.param(0.0, 1e9, 0.05, 0.05, id="before the first one as long as is set"),
        pytest.param(-60.0, 0.0, 0.0, 0.0, id="the clock was set back during the transaction"),
        pytest.param(0.03, -60.0, 0.0, 0.09, id="the clock was set back since"),
    ],
)
def test_a_rest_is(spent: float, since: float, linger: float, expected: float) -> None:
    assert rest(spent, since, linger) == pytest.approx(expected)


def test_a_lane_that_was_idle_does_not_rest() -> None:
    assert rest(0.03, 0.09, 0.0) <= 0


HERE, THERE = {b"p": b"1"}, {b"p": b"2"}


def reopening() -> Reopening:
    return Reopening(max_batch=2000, fenced_pause=3.0)


@pytest.mark.parametrize("opens", [False, True], ids=["by a working owner", "while it opens"])
def test_a_fenced_lane_keeps_its_size(opens: bool) -> None:
    policy = reopening()
    places = [None if opens else {b"p": b"%d" % n} for n in range(20)]
    assert [policy.failed(Fenced(), place) for place in places] == [Reopen(3.0)] * 20
    assert policy.limit == 2000


@pytest.mark.promise("smaller-transactions")
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


@pytest.mark.promise("quarantine")
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


@pytest.mark.promise("quarantine")
@pytest.mark.parametrize("error", [Refused("the clock"), StoreUnavailable("the disk")])
@pytest.mark.parametrize("place", [HERE, None])
def test_what_somebody_has_to_mend_is_waited_out(error: Exception, place: object) -> None:
    policy = reopening()
    pauses = [policy.failed(error, place) for _ in range(1000)]
    assert pauses[:4] == [Reopen(0.2), Reopen(0.4), Reopen(0.8), Reopen(1.6)]
    assert pauses[-1] == Reopen(30.0)
    assert policy.limit == 2000


@pytest.mark.parametrize("error", [Refused("the clock"), RecordRefused("too large")])
def test_a_refusal_is_expected_and_its_outcome_is_known(error: Exception) -> None:
    assert is_expected(error)
    assert not isinstance(error, OutcomeUnknown)


@pytest.mark.promise("quarantine")
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
