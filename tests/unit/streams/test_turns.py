"""Which turns of handlers are told of as too long."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

import streams.lane.attempt
from streams.lane.attempt import Turns
from streams.staging.arrival import Counters


class Taken(NamedTuple):
    """A message, as far as is told of it."""

    key: bytes = b"key"
    value: bytes = b"value"


def test_long_turns_are_counted_and_told_of_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(streams.lane.attempt, "perf_counter", lambda: now)
    counters = Counters()
    turns = Turns(counters)
    taken: Any = SimpleNamespace(record=Taken())
    with capture_logs() as logs:
        for at, seconds in ((100.0, 0.4), (110.0, 0.6), (119.0, 0.6), (121.0, 0.6)):
            now = at
            assert turns.ended("bench.count", taken, at - seconds) == at
    assert counters.held_loop == 3
    assert [(each["event"], each["handler"]) for each in logs] == [("handler_held_loop", "bench.count")] * 2
