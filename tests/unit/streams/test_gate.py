"""A gate of a handler, and the chores of a lane: each in its turn."""

from collections.abc import Callable

import pytest
from letters_kept import Kept
from test_breaker import allowed

from streams.engine.life.housekeeping import Throttled, step_all
from streams.engine.waiting.dead_letters.expiry import Expiry
from streams.engine.waiting.dead_letters.row import new_letter
from streams.engine.waiting.gate import HandlerGate
from streams.errors import PermanentError
from streams.model.layout import DEAD_LETTERS
from streams.model.operations import HandlerPause, PauseState
from streams.model.policy.breaker import NO_PERMIT, BreakerPolicy, BreakerState
from streams.testing.log import FakeRecord

POLICY = BreakerPolicy(window=10.0, minimum=4, failure_rate=0.5, open_for=5.0, max_open_for=5.0, probes=2)


@pytest.fixture
def gate() -> HandlerGate:
    return HandlerGate("bench.count", POLICY)


def opened(gate: HandlerGate, now: float = 0.0) -> HandlerGate:
    for _ in range(POLICY.minimum):
        gate.record(NO_PERMIT, ok=False, now=now)
    assert gate.breaker.state is BreakerState.OPEN
    return gate


def test_messages_that_went_straight_through_count_as_calls_that_succeeded(gate: HandlerGate) -> None:
    gate.succeeded = 5
    for _ in range(4):
        gate.record(NO_PERMIT, ok=False, now=1.0)
    assert gate.breaker.state is BreakerState.CLOSED, "4 of 9"
    assert gate.succeeded == 0
    gate.record(NO_PERMIT, ok=False, now=1.0)
    assert gate.breaker.state is BreakerState.OPEN, "5 of 10"


def test_those_of_before_the_window_do_not_count(gate: HandlerGate) -> None:
    gate.succeeded = 5
    gate.update_breaker(0.0)
    for _ in range(4):
        gate.record(NO_PERMIT, ok=False, now=20.0)
    assert gate.breaker.state is BreakerState.OPEN


def test_the_outside_is_to_blame_until_an_attempt_has_succeeded(gate: HandlerGate) -> None:
    opened(gate)
    gate.record(allowed(gate.breaker, 5.0), ok=False, now=5.0)
    assert gate.away
    gate.record(allowed(gate.breaker, 10.0), ok=True, now=10.0)
    assert not gate.away
    gate.record(allowed(gate.breaker, 10.0), ok=False, now=10.0)
    assert gate.breaker.state is BreakerState.OPEN
    assert not gate.away, "something answered meanwhile"


def test_it_is_clear_with_breaker_closed_and_nothing_waiting(gate: HandlerGate) -> None:
    opened(gate)
    gate.add(b"queue")
    for _ in range(POLICY.probes):
        gate.record(allowed(gate.breaker, 5.0), ok=True, now=5.0)
    assert gate.breaker.state is BreakerState.CLOSED
    assert not gate.clear
    gate.remove(b"queue")
    assert gate.clear


@pytest.mark.parametrize("ok", [True, False])
def test_a_message_from_before_the_opening_says_nothing(gate: HandlerGate, *, ok: bool) -> None:
    opened(gate)
    allowed(gate.breaker, 5.0)
    gate.record(NO_PERMIT, ok=ok, now=5.0)
    assert gate.breaker.state is BreakerState.HALF_OPEN


def test_a_lane_opening_behind_a_breaker_blames_the_outside(gate: HandlerGate) -> None:
    gate.breaker.start_half_open(0.0)
    assert not gate.clear
    assert gate.away


@pytest.mark.parametrize("state", PauseState)
def test_it_is_clear_once_no_partition_has_it_paused(gate: HandlerGate, state: PauseState) -> None:
    for partition in (b"\0\0", b"\0\1"):
        gate.set_pause(partition, HandlerPause(state, "ann", "so", 1))
    holds = state is not PauseState.DRAINING
    assert gate.shut == ({b"\0\0", b"\0\1"} if holds else set())
    gate.set_pause(b"\0\0", None)
    assert not gate.clear
    gate.set_pause(b"\0\1", None)
    assert gate.clear
    assert not gate.shut
    assert not gate.pauses


def test_attempts_given_back_neither_open_nor_close(gate: HandlerGate) -> None:
    for _ in range(3 * POLICY.minimum):
        gate.give_back(NO_PERMIT, now=0.0)
    assert gate.breaker.state is BreakerState.CLOSED
    opened(gate)
    for _ in range(3 * POLICY.probes):
        gate.give_back(allowed(gate.breaker, 6.0), now=6.0)
    assert gate.breaker.state is BreakerState.HALF_OPEN
    assert gate.away


RETENTION = 10.0


class Taking:
    def __init__(self, left: list[int], *, takes: int) -> None:
        self.left = left
        self.takes = takes
        self.rooms: list[int] = []

    def step(self, now: float, room: Callable[[], int]) -> bool:
        self.rooms.append(room())
        self.left[0] -= self.takes
        return self.takes > 0


@pytest.mark.parametrize(
    ("takes", "staged"), [((0, 0), False), ((3, 0), True), ((0, 2), True), ((3, 2), True)]
)
def test_each_chore_has_the_room_that_is_left(takes: tuple[int, int], staged: bool) -> None:
    left = [10]
    first, second = (Taking(left, takes=each) for each in takes)
    assert step_all([first, second], 0.0, lambda: left[0]) is staged
    assert (first.rooms, second.rooms) == ([10], [10 - takes[0]])


def test_what_needs_no_haste_is_done_seldom() -> None:
    done: list[float] = []
    chore = Throttled(done.append)
    for now in (1000.0, 1000.1, 1599.9, 1600.0, 1601.0, 2200.0):
        assert chore.step(now, lambda: 0) is False
    assert done == [1000.0, 1600.0, 2200.0]


@pytest.mark.parametrize("partition", [0, 4])  # of 4: an added one's letters lie among those of 0
def test_the_oldest_letters_expire_as_far_as_room_allows(partition: int) -> None:
    kept = Kept(max_message_bytes=20_000, dead_letter_retention=RETENTION)
    store, letters, staging = kept.store, kept.letters, kept.staging
    expiry = Expiry(letters)

    def left() -> list[int]:
        kept.commit_staged()
        return sorted(letter.offset for key, _ in store.scan(DEAD_LETTERS) if (letter := letters.get(key)))

    for offset in range(5):
        record = FakeRecord("parcels", partition, offset, 1, b"a", b"", [("ce_id", b"1")])
        now_ms = 1000 * (offset + 1)
        letter = new_letter(
            record, PermanentError("no"), handler="post.note", attempts=1, now_ms=now_ms, limit=20_000
        )
        staging.append(0, [letters.set(letter)])
    assert left() == [0, 1, 2, 3, 4]
    now = RETENTION + 4.5
    assert expiry.step(now, lambda: 0) is False
    assert left() == [0, 1, 2, 3, 4]
    assert expiry.step(now, lambda: 3) is True
    assert left() == [3, 4]
    assert expiry.step(now, lambda: 3) is True
    assert left() == [4], "its time is not over"
    assert expiry.step(now + 1.0, lambda: 3) is False, "the next round is later"
