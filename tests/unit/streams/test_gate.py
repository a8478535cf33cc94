"""A gate: messages of a handler go straight through while nothing waits for it, its breaker is closed and
no operator has it paused.
"""

import pytest

from streams.model.operations import HandlerPause, PauseState
from streams.policy.breaker import NO_PERMIT, BreakerPolicy, BreakerState, Permit
from streams.retry.gate import HandlerGate

POLICY = BreakerPolicy(window=10.0, minimum=4, failure_rate=0.5, open_for=5.0, max_open_for=5.0, probes=2)


@pytest.fixture
def gate() -> HandlerGate:
    return HandlerGate("bench.count", POLICY)


def opened(gate: HandlerGate, now: float = 0.0) -> HandlerGate:
    for _ in range(POLICY.minimum):
        gate.record(NO_PERMIT, ok=False, now=now)
    assert gate.breaker.state is BreakerState.OPEN
    return gate


def probe(gate: HandlerGate, now: float) -> Permit:
    permit = gate.breaker.acquire(now)
    assert permit is not None
    return permit


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
    gate.record(probe(gate, 5.0), ok=False, now=5.0)
    assert gate.away
    gate.record(probe(gate, 10.0), ok=True, now=10.0)
    assert not gate.away
    gate.record(probe(gate, 10.0), ok=False, now=10.0)
    assert gate.breaker.state is BreakerState.OPEN
    assert not gate.away, "something answered meanwhile"


def test_it_is_clear_with_breaker_closed_and_nothing_waiting(gate: HandlerGate) -> None:
    opened(gate)
    gate.add(b"queue")
    for _ in range(POLICY.probes):
        gate.record(probe(gate, 5.0), ok=True, now=5.0)
    assert gate.breaker.state is BreakerState.CLOSED
    assert not gate.clear
    gate.remove(b"queue")
    assert gate.clear


@pytest.mark.parametrize("ok", [True, False])
def test_a_message_from_before_the_opening_says_nothing(gate: HandlerGate, *, ok: bool) -> None:
    opened(gate)
    probe(gate, 5.0)
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
        gate.give_back(probe(gate, 6.0), now=6.0)
    assert gate.breaker.state is BreakerState.HALF_OPEN
    assert gate.away
