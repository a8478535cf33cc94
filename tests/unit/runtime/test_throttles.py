"""What quotas of the brokers hold back is summed, and said while it is worth a word."""

import asyncio
import struct
from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.protocol.metadata import MetadataRequest_v1, MetadataRequest_v5
from structlog.testing import capture_logs

from streams.kafka import connections, throttles
from streams.kafka.connections import ProbedConnection
from streams.kafka.fetch_sessions import Bounds, FetchSession, fetch
from streams.kafka.throttles import Client, Throttles, client_of
from streams.kafka.throttling import BEGINS, WINDOW, HeldBack, is_said
from streams.kafka.transactions import requests
from streams.kafka.transactions.requests import V1, V2, Owner
from streams.kafka.wire import CLASSIC, VersionedRequest
from streams.ports import TP
from streams.postgres.relay_service import RelayService
from streams.settings import Settings
from streams.worker.web import _View
from tests.waiting import eventually_async

pytestmark = pytest.mark.promise("quotas")

OWNER, TPS = Owner("lane-0", 7, 0), {TP("a", 0): bytearray(b"batch")}


@pytest.mark.parametrize(
    ("answers", "now", "held"),
    [
        ([], 10.0, 0.0),
        ([(0.0, 4.0)], 0.0, 0.0),  # it is still ahead
        ([(0.0, 4.0)], 3.0, 3.0),
        ([(0.0, 4.0)], 30.0, 4.0),
        ([(0.0, 4.0)], 61.0, 3.0),  # the first second is out of the window
        ([(0.0, 4.0)], 70.0, 0.0),
        ([(0.0, 4.0), (1.0, 4.0)], 30.0, 5.0),  # two brokers at once
        ([(0.0, 9.0), (1.0, 4.0)], 30.0, 9.0),
        ([(0.0, 4.0), (10.0, 4.0)], 30.0, 8.0),
        ([(0.0, 4.0), (90.0, 4.0)], 95.0, 4.0),
        ([(n / 10, 0.05) for n in range(100)], 30.0, 5.0),  # short ones, many times a second
        ([(float(n), 1.0) for n in range(100)], 100.0, WINDOW),
        ([(0.0, 500.0)], 300.0, WINDOW),
    ],
)
def test_what_is_held_back_counts_once_within_the_window(
    answers: list[tuple[float, float]], now: float, held: float
) -> None:
    found = HeldBack()
    for at, seconds in answers:
        found.add(at, seconds)
    assert found.within(now) == pytest.approx(held)
    assert len(found._spells) <= WINDOW + 1


def test_what_is_added_is_what_no_other_broker_holds() -> None:
    found = HeldBack()
    assert [found.add(*each) for each in ((0.0, 4.0), (1.0, 4.0), (2.0, 1.0), (9.0, 1.0))] == [4, 1, 0, 1]


@pytest.mark.parametrize(
    ("before", "held", "said"),
    [(False, 0.0, False), (False, 4.9, False), (False, 5.0, True), (True, 4.9, True), (True, 0.9, False)],
)
def test_it_is_said_from_some_seconds_on_until_almost_none(before: bool, held: float, said: bool) -> None:
    assert is_said(held, before=before) is said


THROTTLE = struct.pack(">i", 1234)
FETCH = fetch(FetchSession(), {TP("a", 0): 0}, Bounds(1, 1, 1), None)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (FETCH, THROTTLE + bytes(10)),
        (requests.produce(V1, OWNER, TPS, 1.0), bytes(4) + THROTTLE),
        (requests.produce(V2, OWNER, TPS, 1.0), b"\1" + THROTTLE + b"\0"),
        (requests.init_producer("a", 1.0), THROTTLE + bytes(12)),
        (requests.add_partitions(OWNER, TPS), THROTTLE + bytes(4)),
        (requests.add_offsets(OWNER, "g"), THROTTLE + bytes(2)),
        (requests.commit_offsets(V1, OWNER, "g", {}), THROTTLE + bytes(4)),
        (requests.commit_offsets(V2, OWNER, "g", {}), THROTTLE + b"\1\0"),
        (requests.end(V1, OWNER), THROTTLE + bytes(2)),
        (requests.end(V2, OWNER), THROTTLE + bytes(13)),
    ],
)
def test_each_answer_says_for_how_long_it_holds_back(request_: VersionedRequest, answer: bytes) -> None:
    assert request_.throttle_ms == 0
    request_.decode(BytesIO(answer))
    assert request_.throttle_ms == 1234


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Throttles:
    found = Throttles()
    monkeypatch.setattr(connections, "throttles", found)
    monkeypatch.setattr("streams.worker.web.throttles", found)
    monkeypatch.setattr("streams.postgres.relay_service.throttles", found)
    return found


def spent(counted: Throttles) -> dict[str, float]:
    return {kind: seconds for kind, seconds in counted.seconds.items() if seconds}


async def answered(request: Any, body: bytes, **options: Any) -> None:
    """Have a connection take an answer to a request."""
    connection = ProbedConnection("127.0.0.1", 1, client_id="lane", **options)
    wait: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection._requests.append((1, request, wait))
    connection._handle_frame(struct.pack(">i", 1) + body)
    await wait


METADATA = struct.pack(">i", 2500) + struct.pack(">ihii", 0, -1, 0, 0)


async def test_answers_of_all_clients_are_counted(counted: Throttles) -> None:
    await answered(MetadataRequest_v1([]), struct.pack(">iii", 0, 0, 0))  # it has no such field
    assert not any(counted.seconds.values())
    await answered(MetadataRequest_v5([], False), METADATA)
    end = VersionedRequest((26, 0), CLASSIC, [], requests._outcome)
    await answered(end, THROTTLE + bytes(2))
    assert spent(counted) == {"other": pytest.approx(2.5), "transaction": pytest.approx(1.234)}


async def test_no_answer_counts_longer_than_its_client_waits(counted: Throttles) -> None:
    await answered(MetadataRequest_v5([], False), METADATA, request_timeout_ms=500)
    assert spent(counted) == {"other": pytest.approx(0.5)}


def test_a_client_is_named_as_the_broker_knows_it() -> None:
    assert client_of({"client_id": "a"}) == Client("a", "ANONYMOUS")
    login = {"security_protocol": "SASL_SSL", "sasl_plain_username": "post"}
    assert client_of({"client_id": "a", **login}) == Client("a", "post")
    assert client_of({"client_id": "a", "security_protocol": "SSL"}) == Client("a", "")


async def test_it_is_said_once_and_warned_of_until_it_ends(
    counted: Throttles, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(throttles, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(throttles, "_LOOK_EVERY", 0.0)
    view = _View(cast("Any", SimpleNamespace(file_shortage="", membership_trouble="")))

    def events(of: list[Any]) -> Callable[[], list[str]]:
        return lambda: [each["event"] for each in of]

    with capture_logs() as logs:
        counted.note(1, 20.0, Client("aiokafka", "post"))
        assert view.own_warnings == []  # it has only begun
        now += BEGINS
        await eventually_async(events(logs), "it is said")
        (warning,) = view.own_warnings
        for part in ("fetch for 5 s", "client 'aiokafka' of user 'post'", "consumer_byte_rate"):
            assert part in warning
        now += 20.0
        counted.note(0, 2.0, Client("aiokafka", "post"))
        now += 2.0
        (warning,) = view.own_warnings
        assert "fetch for 20 s and produce for 2 s of" in warning
        now += WINDOW
        await eventually_async(lambda: "kafka_throttles_no_more" in events(logs)(), "its end is said")
        assert view.own_warnings == []
    assert events(logs)() == ["kafka_throttles", "kafka_throttles_no_more"]
    assert spent(counted) == {"fetch": 20.0, "produce": 2.0}
    assert view.throttled == counted.seconds
    assert counted._looks_on is None  # nothing looks any more


async def test_a_relay_says_that_a_quota_slows_it(
    counted: Throttles, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(throttles, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(throttles, "_LOOK_EVERY", 0.0)
    settings = Settings(
        app_id="post", bootstrap="127.0.0.1:1", postgres_url="postgresql://nobody@127.0.0.1:1/none"
    )
    service = RelayService(settings)

    async def told() -> list[str]:
        service.health._report = None
        return [each for each in (await service.health.report()).reasons if each.startswith("quotas")]

    assert await told() == []
    counted.note(0, 20.0, Client("aiokafka", "post"))
    now += BEGINS
    await eventually_async(lambda: counted._said, "it is noticed")
    (reason,) = await told()
    assert reason.startswith(
        "quotas: a quota of the brokers slows this process: they held back produce for 5 s"
    )
    name = "steadfaust_kafka_throttled_seconds_total"
    assert service.registry.get_sample_value(name, {"request": "produce"}) == pytest.approx(20.0)
    now += 20.0 + WINDOW
    await eventually_async(lambda: not counted._said, "it is over")
    assert await told() == []
