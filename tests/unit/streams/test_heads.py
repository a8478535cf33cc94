"""The head of a queue that does not run after all, and what cannot wait."""

from types import SimpleNamespace
from typing import Any

import pytest

from streams.model.envelope import RECORD_OVERHEAD
from streams.policy.breaker import NO_PERMIT, BreakerPolicy
from streams.retry.decisions import is_overtaken
from streams.retry.gate import HandlerGate
from streams.retry.waiting import Waiting
from streams.staging.changes import Change

PROBES = BreakerPolicy(minimum=1, open_for=5.0, max_open_for=5.0, probes=2)
QUEUE = b"\0\0bench.count\0a"


def test_a_head_that_waits_on_gives_its_probe_back() -> None:
    gate = HandlerGate("bench.count", PROBES)
    gate.record(NO_PERMIT, ok=False, now=0.0)
    permits = [gate.breaker.acquire(5.0) for _ in range(3)]
    assert [permit is not None for permit in permits] == [True, True, False]
    gate.running.add(QUEUE)
    queues = SimpleNamespace(get=lambda _: None)  # an operator has taken it out
    waiting: Any = SimpleNamespace(gates={"bench.count": gate}, queues=queues)
    arrival: Any = SimpleNamespace(
        queue=QUEUE,
        number=0,
        permit=permits[0],
        entry=SimpleNamespace(prefix=b"\0\0"),
        handler=SimpleNamespace(name="bench.count"),
    )
    assert is_overtaken(waiting, arrival)
    assert gate.running == set()
    assert gate.breaker.acquire(5.0) is not None


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
def test_what_waits_is_no_larger_than_a_record(size: int, fits: bool) -> None:
    options = SimpleNamespace(max_message_bytes=1000 + RECORD_OVERHEAD)
    app = SimpleNamespace(lane_options=options, routes={}, handlers={})
    outcomes: Any = SimpleNamespace(staging=SimpleNamespace(app=app, store=None))
    letters: Any = None
    waiting = Waiting(outcomes, letters, {})
    rows = [Change("lane", b"k", b"small"), Change("lane", b"k" * 10, b"v" * (size - 10))]
    assert (waiting.too_large(rows) is None) is fits
