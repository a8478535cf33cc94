"""What aiokafka repeats hundreds of times a second is written once in a while; nothing else is kept back."""

from __future__ import annotations

import logging

import pytest
from aiokafka import client
from aiokafka.errors import NotEnoughReplicasError
from aiokafka.producer import sender

from streams.runtime import quiet


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]  # later than what any other test has logged
    monkeypatch.setattr(quiet.time, "monotonic", lambda: now[0])
    return now


def test_the_same_line_is_written_again_after_a_while(
    at: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(node: int) -> None:
        client.log.error("Unable connect to node with id %s: %s", node, "refused")

    fail(1)
    fail(1)
    fail(2)
    assert len(caplog.records) == 2
    at[0] += quiet.INTERVAL
    fail(1)
    assert len(caplog.records) == 3


def test_missing_replicas_are_told_once_for_all_partitions(
    at: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    at[0] += 1_000_000
    for partition in range(3):
        sender.log.warning("produce to %s failed: %s", partition, NotEnoughReplicasError)
    assert len(caplog.records) == 1
