"""What the check reads from records that the lane has written."""

import pytest

from demo.failures import DeadLetter, LetterSource, Reference, dead_letter, followed
from demo.purchases import purchases
from demo.trouble import PoisonKind, spoiled
from streams.engine.waiting.dead_letters import record as dead_letters
from streams.errors import BlobsUnavailable, Undecodable
from streams.model.claim import with_claim
from streams.model.claim_checks import ClaimChecks
from streams.ports import Headers
from streams.testing.blobs import MemoryBlobs


class Came:
    topic, partition, offset, timestamp = "orders.order.placed.v1", 3, 17, 0

    def __init__(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.key, self.value, self.headers = key, value, headers


def test_a_dead_letter_says_its_content_and_reason() -> None:
    bad = spoiled(purchases(1)[0], PoisonKind.CUT_OFF)
    letter = dead_letters.dead_letter(
        Came(*bad.record), Undecodable("cut off"), group="app", handler="", now=0.0, limit=10_000
    )
    read = dead_letter(letter.key, {name: value for name, value in letter.headers if value is not None})
    assert read == DeadLetter("cdnow-00001", bad.error, LetterSource("orders.order.placed.v1", 3, 17))
    assert str(read) == "cdnow-00001 of orders.order.placed.v1: Undecodable"


async def test_only_a_lost_or_altered_payload_is_a_fault() -> None:
    blobs = MemoryBlobs("payloads")
    checks = ClaimChecks(blobs, bucket="payloads", cache_bytes=0)
    claim = checks.claim("orders.order.placed.v1", "m-1", b"picture")
    await checks.check_in(claim, b"picture")
    headers = dict(with_claim([], claim))
    assert await followed("topic", "key", headers, checks) == Reference("topic", "key", 7)
    blobs.alter(claim.name)
    assert claim.name in (await followed("topic", "key", headers, checks)).fault
    blobs.lose(claim.name)
    assert claim.name in (await followed("topic", "key", headers, checks)).fault
    assert (await followed("topic", "key", {"ce_dataref": b"nonsense"}, checks)).fault
    blobs.down = True
    with pytest.raises(BlobsUnavailable):
        await followed("topic", "key", headers, checks)
