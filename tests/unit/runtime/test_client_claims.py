import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from streams.errors import BlobsUnavailable, TooLarge
from streams.host import client
from streams.model.choreography import choreography
from streams.model.claim import DATAREF
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import json_without_schema
from streams.model.message import Message
from streams.settings import Settings
from streams.testing.blobs import MemoryBlobs
from streams.worker.worker import Worker


class Note(Message, frozen=True):
    TOPIC: ClassVar[str] = "notes.note.taken.v1"
    text: str

    @property
    def key(self) -> str:
        return "k"


class KafkaStub:
    """Takes records as aiokafka's producer does."""

    def __init__(self, **_: Any) -> None:
        self.sent: list[tuple[bytes, dict[str, bytes]]] = []
        self.refusal: Exception | None = None

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def flush(self) -> None:
        await asyncio.sleep(0)  # what was sent has been answered by then

    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Any) -> asyncio.Future[None]:
        self.sent.append((value, dict(headers)))
        done = asyncio.get_running_loop().create_future()
        if self.refusal is None:
            done.set_result(None)
        else:
            done.set_exception(self.refusal)
        return done


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AIOKafkaProducer", KafkaStub)
    monkeypatch.setattr(client, "deliver_within", lambda producer, seconds: None)


async def test_a_client_checks_large_payloads_in_before_it_sends() -> None:
    blobs = MemoryBlobs("bucket")
    checks = ClaimChecks(blobs, bucket="bucket", threshold=100)
    async with client.Producer("nowhere", json_without_schema, source="s", claims=checks) as producer:
        stub: KafkaStub = producer._producer
        await producer.send(Note(text="small"))
        await producer.send(Note(text="x" * 500), message_id="n-2")
        blobs.down = True
        with pytest.raises(BlobsUnavailable):
            await producer.send(Note(text="y" * 500))
    (small, plain), (value, headers) = stub.sent
    assert (b"small" in small, DATAREF in plain, value) == (True, False, b"")
    assert payload(headers, blobs) == b'{"text":"' + b"x" * 500 + b'"}'
    assert (headers["ce_id"], headers["content-type"]) == (b"n-2", b"application/json")


class Photo(Note, frozen=True):
    TOPIC: ClassVar[str] = "notes.photo.taken.v1"
    BINARY = True


def worker(
    tmp_path: Path, blobs: MemoryBlobs | None, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Worker:
    @asynccontextmanager
    async def named(settings: Settings) -> AsyncIterator[ClaimChecks | None]:
        yield (
            None if blobs is None else ClaimChecks(blobs, bucket="bucket", threshold=settings.claim_threshold)
        )

    monkeypatch.setattr("streams.worker.worker._claims", named)
    read = Settings(var=tmp_path, bootstrap="nowhere:1", app_id="notes", **settings)
    return Worker(choreography(), settings=read, codecs=lambda _: json_without_schema)


async def test_workers_client_checks_in_as_lanes_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = MemoryBlobs("bucket")
    app = worker(tmp_path, blobs, monkeypatch, claim_threshold=100_000)
    async with app.client("script") as producer:
        stub: KafkaStub = producer._producer
        await producer.send(Note(text="x" * 2_000_000))
        await producer.send(Note(text="y" * 200_000))
        await producer.send(Photo(text="small"))
        await producer.send(Note(text="small"))
    assert [DATAREF in headers for _, headers in stub.sent] == [True, True, True, False]
    assert payload(stub.sent[2][1], blobs) == b'{"text":"small"}'


async def test_what_exceeds_a_record_is_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = worker(tmp_path, None, monkeypatch, max_message_bytes=100_000)
    async with app.client("script") as producer:
        with pytest.raises(
            TooLarge, match=r"'k' makes a record of 20\d{4} bytes for .*set STEADFAUST_S3_BUCKET"
        ):
            await producer.send(Note(text="x" * 200_000))
        await producer.send(Note(text="after that it still sends"))
        await producer.flush()
        assert len(producer._producer.sent) == 1


async def test_key_larger_than_any_record_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = worker(tmp_path, MemoryBlobs("bucket"), monkeypatch)
    monkeypatch.setattr(Note, "key", property(lambda self: "k" * 1_000_000))
    async with app.client("script") as producer:
        with pytest.raises(TooLarge, match="its key and headers alone are too large"):
            await producer.send(Note(text="x"))


async def test_a_topic_that_takes_less_is_named() -> None:
    async with client.Producer("nowhere", json_without_schema, source="s") as producer:
        producer._producer.refusal = MessageSizeTooLargeError()
        await producer.send(Note(text="x"))
        with pytest.raises(TooLarge, match=r"notes\.note\.taken\.v1: it is over the topic's max\.message"):
            await producer.flush()
        producer._failure = None


def payload(headers: dict[str, bytes], blobs: MemoryBlobs) -> bytes:
    return blobs._objects[headers[DATAREF].decode().removeprefix("s3://bucket/")].data
