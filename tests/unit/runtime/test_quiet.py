"""What aiokafka repeats hundreds of times a second is written once in a while; nothing else is kept back."""

from types import SimpleNamespace

import pytest
from aiokafka import client
from aiokafka.errors import NotEnoughReplicasError
from aiokafka.producer import sender

from streams.runtime.kafka import clients


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(at=1e9)  # later than what any other test has logged
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: clock.at))
    return clock


def test_a_line_is_written_again_after_a_while(
    now: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(node: int) -> None:
        client.log.error("no connection to node %s", node)

    fail(1)
    fail(1)
    fail(2)
    assert [record.getMessage()[-1] for record in caplog.records] == ["1", "2"]
    now.at += clients.INTERVAL
    fail(1)
    assert len(caplog.records) == 3


def test_missing_replicas_are_told_once_for_all_partitions(
    now: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(3):
        sender.log.warning("produce to %s failed: %s", partition, NotEnoughReplicasError)
    assert len(caplog.records) == 1
