from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from streams.claims.checks import ClaimChecks
from streams.claims.claim import DATAREF
from streams.errors import BlobsUnavailable
from streams.model.codecs import json_without_schema
from streams.model.message import Message
from streams.runtime import client
from streams.testing.blobs import MemoryBlobs


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

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def flush(self) -> None: ...

    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Any) -> asyncio.Future[None]:
        self.sent.append((value, dict(headers)))
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_a_client_checks_large_payloads_in_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AIOKafkaProducer", KafkaStub)
    monkeypatch.setattr(client, "deliver_within", lambda producer, seconds: None)
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


def payload(headers: dict[str, bytes], blobs: MemoryBlobs) -> bytes:
    return blobs._objects[headers[DATAREF].decode().removeprefix("s3://bucket/")].data
