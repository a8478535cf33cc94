"""Brokers that do not answer are named in the log, and what repeats is written once in a while."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest
from aiokafka import client
from aiokafka.errors import NotEnoughReplicasError
from aiokafka.producer import sender
from structlog.testing import capture_logs

from streams.errors import ClusterUnavailable
from streams.host import access
from streams.host.access import until_brokers_answer
from streams.kafka import clients, connections
from streams.kafka.clients import KafkaOptions, close_within
from streams.kafka.topics import KafkaTopics
from streams.worker.web import _View
from tests.waiting import BOUND


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Where connections are taken, and nothing is ever answered."""
    monkeypatch.setattr(connections, "_said", {})
    monkeypatch.setattr(connections, "_brokers", WeakKeyDictionary())
    open_ones: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: open_ones.append(writer), "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for each in open_ones:
        each.close()


async def test_brokers_that_do_not_answer_are_said_before_giving_up(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SAID_AFTER", 0.05)
    with capture_logs() as logs, pytest.raises(ClusterUnavailable):
        async with KafkaTopics(silent, KafkaOptions(metadata_timeout=0.5)):
            pass
    (said,) = [each for each in logs if each["event"] == "brokers_do_not_answer"]
    assert said["bootstrap"] == silent
    assert "is STEADFAUST_BOOTSTRAP right" in said["action"]


async def test_a_refused_connection_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_said", {})
    monkeypatch.setattr(access, "_ASK_EVERY", 0.0)
    tries = iter([True, True, True, False])
    with capture_logs() as logs:
        await until_brokers_answer("127.0.0.1:1", lambda: next(tries))
    assert next(tries, None) is None  # it was tried again, as long as it was to go on
    said = [each for each in logs if each["event"] == "brokers_do_not_answer"]
    assert len(said) == 1  # once in a while
    assert "127.0.0.1:1" in said[0]["error"]


@pytest.mark.parametrize("begun", ["later", "while a client started"])
async def test_brokers_that_freeze_later_are_said_and_warned_of(
    silent: str, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.05)
    monkeypatch.setattr(connections, "WARNED_AFTER", 0.0)
    host, port = silent.split(":")
    tasks = []

    async def bootstrap(client: object) -> None:
        """As aiokafka does, which begins the task that renews metadata in here."""
        tasks.append(asyncio.create_task(connections.connect(host, int(port))))

    if begun == "later":
        tasks.append(asyncio.create_task(connections.connect(host, int(port))))
    else:
        await connections.telling(bootstrap)(SimpleNamespace(_bootstrap_servers=silent))
    with capture_logs() as logs, pytest.raises(TimeoutError):
        await tasks[0]
    (said,) = [each for each in logs if each["event"] == "brokers_do_not_answer"]
    assert said["bootstrap"] == silent
    (warning,) = _View(cast("Any", SimpleNamespace(file_shortage="", membership_trouble=""))).own_warnings
    assert f"Kafka does not answer: broker {silent} for" in warning


async def test_a_broker_that_answers_again_is_no_warning_any_more(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.05)
    monkeypatch.setattr(connections, "WARNED_AFTER", 0.0)
    monkeypatch.setattr(connections, "ATTEMPT_INTERVAL", 0.0)
    host, port = silent.split(":")
    with pytest.raises(TimeoutError):
        await connections.connect(host, int(port))
    assert connections.silent_brokers()

    async def answers(connection: object) -> None:
        """Its first question has an answer."""

    monkeypatch.setattr(connections.AIOKafkaConnection, "connect", answers)
    with capture_logs() as logs:
        await connections.connect(host, int(port))
    assert [each["event"] for each in logs] == ["broker_answers_again"]
    assert connections.silent_brokers() == []


async def test_a_client_that_does_not_close_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLOSE_WITHIN", 0.05)
    with capture_logs() as logs:
        async with asyncio.timeout(BOUND):
            await close_within("a reader", asyncio.Event().wait)
    (said,) = logs
    assert (said["event"], said["client"]) == ("client_does_not_close", "a reader")


async def test_what_closing_fails_of_is_told() -> None:
    async def close() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await close_within("a reader", close)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(at=1e9)  # later than what any other test has logged
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: clock.at))
    return clock


def test_line_is_written_again_after_a_while(now: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
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
