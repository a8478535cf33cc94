"""A real worker that quotas of its broker slow down: it says so, and when it is over."""

import asyncio
import re
import struct
import time
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code

from streams.kafka.wire import CLASSIC, ResponseReader, VersionedRequest
from streams.local import Stack
from streams.model.envelope import new_headers
from tests.integration.test_group_troubles import Post
from tests.integration.worker_process import ask
from tests.waiting import eventually

pytestmark = pytest.mark.promise("quotas")

MESSAGES = 60
_ALTER_CLIENT_QUOTAS = (49, 0)
_ENTRY = struct.Struct(">h")


async def set_quota(bootstrap: str, client_id: str, key: str, rate: float | None) -> None:
    """Give all clients with this id a quota, each user for itself; None takes it away."""
    body = CLASSIC.count(1) + CLASSIC.count(1) + CLASSIC.string("client-id") + CLASSIC.string(client_id)
    body += CLASSIC.count(1) + CLASSIC.string(key) + struct.pack(">d??", rate or 0.0, rate is None, False)
    client = AIOKafkaClient(bootstrap_servers=bootstrap, client_id="operator")
    await client.bootstrap()
    try:
        code, why = await client.send(
            client.get_random_node(), VersionedRequest(_ALTER_CLIENT_QUOTAS, CLASSIC, [body], _altered)
        )
    finally:
        await client.close()
    if code:
        raise for_code(code)(why)


def _altered(answer: ResponseReader) -> tuple[int, str]:
    answer.throttle()
    assert answer.count() == 1
    (code,) = answer.take(_ENTRY)
    return code, answer.string()


async def send(bootstrap: str, topic: str) -> None:
    """More than a quota of 2 kB/s lets through in half a minute."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="sender") as producer:
        for number in range(MESSAGES):
            key = f"parcel-{number}-{'x' * 1000}"
            headers = new_headers(topic, key, source="test", time=time.time())
            await producer.send_and_wait(
                topic, b'{"parcel": "%s"}' % key.encode(), key=key.encode(), headers=headers
            )


def throttled(worker: Post, request: str) -> float:
    """The metric."""
    _, _, text = ask(f"{worker._slot.read_text()}/metrics")
    name = f'steadfaust_kafka_throttled_seconds_total{{request="{request}"}}'
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.verify("minutes; tests/unit/runtime/test_throttles.py has each part by itself")
@pytest.mark.parametrize(
    ("quota", "rate", "request_"),
    [("consumer_byte_rate", 2000.0, "fetch"), ("producer_byte_rate", 2000.0, "produce")],
)
def test_a_worker_says_that_a_quota_slows_it(
    kafka: Stack, tmp_path: Path, quota: str, rate: float, request_: str
) -> None:
    client = AIOKafkaClient.__init__.__kwdefaults__["client_id"]  # that of the lanes
    with closing(Post(f"slow-{request_}", kafka.bootstrap, tmp_path)) as worker:
        eventually(worker.is_ready, f"it is ready; see {worker.log}")
        asyncio.run(set_quota(kafka.bootstrap, client, quota, rate))
        try:
            asyncio.run(send(kafka.bootstrap, worker.environment["POST_TOPIC"]))
            words = ("a quota of the brokers slows this process", f"{request_} for", repr(client), quota)
            eventually(lambda: worker.warns(*words), f"it warns; see {worker.log}")
            assert throttled(worker, request_) >= 5
        finally:
            asyncio.run(set_quota(kafka.bootstrap, client, quota, None))
        # What was held back then is held back still, and looked at for a minute more.
        eventually(lambda: not worker.warns("a quota"), f"no warning is left; {worker.log}", bound=300)
        (said,) = worker.told("kafka_throttles")
        assert said["held"][request_] >= 5
        eventually(lambda: worker.told("kafka_throttles_no_more"), f"its end is said; {worker.log}")
