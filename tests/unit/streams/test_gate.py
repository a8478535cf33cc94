"""A gate: messages of a handler go straight through while nothing waits for it, its breaker is closed and
no operator has it paused.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streams.model.operations import Pause, PauseState
from streams.policy.breaker import BreakerPolicy, BreakerState, Permit
from streams.retry.gate import UNASKED, HandlerGate

POLICY = BreakerPolicy(window=10.0, minimum=4, failure_rate=0.5, open_for=5.0, max_open_for=5.0, probes=2)


@pytest.fixture
def gate() -> HandlerGate:
    return HandlerGate("bench.count", POLICY)


def opened(gate: HandlerGate, now: float = 0.0) -> HandlerGate:
    for _ in range(POLICY.minimum):
        gate.record(UNASKED, ok=False, now=now)
    assert gate.breaker.state is BreakerState.OPEN
    return gate


def probe(gate: HandlerGate, now: float) -> Permit:
    permit = gate.breaker.acquire(now)
    assert permit is not None
    return permit


def test_messages_that_went_straight_through_count_as_calls_that_succeeded(gate: HandlerGate) -> None:
    gate.succeeded = 5
    for _ in range(4):
        gate.record(UNASKED, ok=False, now=1.0)
    assert gate.breaker.state is BreakerState.CLOSED, "4 of 9"
    assert gate.succeeded == 0
    gate.record(UNASKED, ok=False, now=1.0)
    assert gate.breaker.state is BreakerState.OPEN, "5 of 10"


def test_those_of_before_the_window_do_not_count(gate: HandlerGate) -> None:
    gate.succeeded = 5
    gate.update_breaker(0.0)
    for _ in range(4):
        gate.record(UNASKED, ok=False, now=20.0)
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
    gate.record(UNASKED, ok=ok, now=5.0)
    assert gate.breaker.state is BreakerState.HALF_OPEN


def test_a_lane_opening_behind_a_breaker_blames_the_outside(gate: HandlerGate) -> None:
    gate.breaker.start_half_open(0.0)
    assert not gate.clear
    assert gate.away


class AnyGate(RuleBasedStateMachine):
    """Whatever happens, it is clear exactly when nothing waits, the breaker is closed and it is paused
    nowhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = HandlerGate("bench.count", POLICY)
        self.now = 0.0
        self.permits: list[Permit] = []
        self.queues: set[bytes] = set()

    @rule(queue=st.sampled_from([b"1", b"2", b"3"]))
    def begin(self, queue: bytes) -> None:
        self.gate.add(queue)
        self.queues.add(queue)

    @rule(queue=st.sampled_from([b"1", b"2", b"3"]))
    def end(self, queue: bytes) -> None:
        self.gate.remove(queue)
        self.queues.discard(queue)

    @rule(partition=st.sampled_from([b"\0\0", b"\0\1"]), state=st.none() | st.sampled_from(PauseState))
    def operate(self, partition: bytes, state: PauseState | None) -> None:
        self.gate.set_pause(partition, None if state is None else Pause(state, "ann", "so", 1))
        assert (partition in self.gate.pauses) is (state is not None)
        assert (partition in self.gate.held) is (state in (PauseState.PAUSED, PauseState.DRAINED))

    @rule(seconds=st.sampled_from([0.1, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.gate.update_breaker(self.now)

    @rule()
    def ask(self) -> None:
        if (permit := self.gate.breaker.acquire(self.now)) is not None:
            self.permits.append(permit)

    @rule(ok=st.booleans())
    def tell(self, *, ok: bool) -> None:
        before, blamed = self.gate.breaker.state, self.gate.away
        self.gate.record(self.permits.pop(0) if self.permits else UNASKED, ok=ok, now=self.now)
        if before is not BreakerState.CLOSED:
            assert self.gate.away is (blamed and not ok)

    @rule()
    def one_goes_straight_through(self) -> None:
        if self.gate.clear:
            self.gate.succeeded += 1

    @invariant()
    def it_is_clear_when_it_should_be(self) -> None:
        closed = self.gate.breaker.state is BreakerState.CLOSED
        assert self.gate.clear is (closed and not self.queues and not self.gate.pauses)
        assert not (closed and self.gate.away)


TestAnyGate = AnyGate.TestCase


def test_attempts_given_back_neither_open_nor_close(gate: HandlerGate) -> None:
    for _ in range(3 * POLICY.minimum):
        gate.give_back(UNASKED, now=0.0)
    assert gate.breaker.state is BreakerState.CLOSED
    opened(gate)
    for _ in range(3 * POLICY.probes):
        gate.give_back(probe(gate, 6.0), now=6.0)
    assert gate.breaker.state is BreakerState.HALF_OPEN
    assert gate.away
