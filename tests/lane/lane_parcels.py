"""Parcels: messages with payloads of any size, a bucket for the large ones, and an independent check."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from lane_checker import check_positions, check_store, latest
from lane_failing import PATIENT, QUICK, nothing_waits, waiting
from lane_workloads import Workload, chained
from lane_worlds import Post, World

from streams.model.claim import PREFIX, claim_in, claim_of, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.envelope import new_headers
from streams.model.layout import CLAIMS
from streams.model.row_keys import split_row_key
from streams.ports import Record
from streams.testing.blobs import MemoryBlobs
from tests.waiting import BOUND

BUCKET = "event-payloads"
#: Bytes of a payload from which on it goes by reference.
THRESHOLD = 1000


class Parcels:
    def __init__(self, world: World, work: Workload, *, in_flight: int = 1 << 20, blobs: Any = None) -> None:
        """`blobs` is a bucket in memory unless given."""
        self.world = world
        self.work = work
        self.blobs = blobs or MemoryBlobs(BUCKET, now=world.clock.now, sleep=world.clock.sleep)
        self.checks = ClaimChecks(
            self.blobs, bucket=BUCKET, threshold=THRESHOLD, max_in_flight_bytes=in_flight, cache_bytes=0
        )
        self.sent: dict[str, list[str]] = {}

    async def start(self, **lane_options: Any) -> None:
        await self.world.start(
            self.work,
            claims=self.checks,
            **{"retry": QUICK, "breaker": PATIENT, "outage_patience": 0.0, **lane_options},
        )

    async def post(self, key: str, i: int, size: int = 0) -> Post:
        """A parcel as a client sends it, by reference when it is large. Its text tells it from all others."""
        text = f"{key}-{i}:".ljust(size, "x")
        self.sent.setdefault(key, []).append(text)
        post = await self.made(key, i, text)
        await self.world.post(post)
        return post

    async def made(self, key: str, i: int, text: str) -> Post:
        topic = self.work.source
        codec = self.world.app.message_codecs[topic]
        data = codec.encode(self.work.made(k=key, i=i, text=text))
        headers = new_headers(topic, key, source="outside", time=1e9, message_id=f"{key}-{i}")
        if len(data) > THRESHOLD:
            claim = claim_of(BUCKET, topic, f"{key}-{i}", data)
            await self.blobs.put(claim.name, data, claim.content_type)
            headers, data = with_claim(headers, claim), b""
        return self.world.raw(topic, key, data, headers)

    async def settled(self) -> None:
        """Wait until all has been handled, also what waits, and what that sent as well."""
        for topic in (self.work.source, self.work.output):
            await self.world.settled(topic)
            async with asyncio.timeout(BOUND):
                while await waiting(self.world):
                    await self.world._tick()

    async def stop(self, lane: Any) -> None:
        await self.settled()
        await lane.stop()

    async def finish(self, lane: Any, **allowed: Any) -> None:
        """Settle, stop, and check everything."""
        await self.stop(lane)
        await self.check(**allowed)
        await check_store(self.world)
        await nothing_waits(self.world)

    async def payload(self, record: Record) -> bytes:
        claim = claim_in(dict(record.headers))
        if claim is None:
            return record.value or b""
        assert record.value == b""
        self.blobs.slow = 0.0
        return await self.blobs.get(claim.name)

    async def passed_on(self) -> list[dict[str, Any]]:
        return [json.loads(await self.payload(r)) for r in await self.world.records(self.work.output)]

    async def row(self, table: str, key: str) -> dict[str, Any]:
        for (_, row), value in (await latest(self.world, table)).items():
            if split_row_key(row)[0] == key.encode():
                found: dict[str, Any] = json.loads(value[8:])
                return found
        return {"n": 0, "text": ""}

    async def named(self) -> set[str]:
        return {name.decode() for _, name in await latest(self.world, CLAIMS)}

    async def check(self, *, dead: Sequence[str] = (), order_of: Callable[[int], str] = lambda _: "") -> None:
        """Every parcel has been handled once, in order and byte for byte, but for `dead` ones by their texts;
        and whatever a message refers to is there and named by a row.
        """
        out = await self.passed_on()
        for key, texts in self.sent.items():
            wanted = [text for text in texts if text not in dead]
            found = [(each["n"], each["text"]) for each in out if each["k"] == key]
            assert [n for n, _ in found] == list(range(1, len(wanted) + 1)), key
            assert ordered([text for _, text in found], order_of) == ordered(wanted, order_of), key
            digest = ""
            for _, text in found:
                digest = chained(digest, text)
            assert await self.row("read", key) == {"n": len(wanted), "text": digest}
        await self.check_references(lost=bool(dead))
        await check_positions(self.world, self.world.app.sources)

    async def check_references(self, *, lost: bool = False) -> None:
        """Whatever a message refers to is named by a row, and there, unless it was `lost`."""
        named = await self.named()
        there = {blob.name async for blob in self.blobs.scan(PREFIX)}
        for topic in self.world.app.sources:
            for record in await self.world.records(topic):
                if (claim := claim_in(dict(record.headers))) is not None:
                    assert claim.name in named
                    assert lost or claim.name in there


def ordered(texts: Sequence[str], order_of: Callable[[int], str]) -> dict[str, list[str]]:
    orders: dict[str, list[str]] = {}
    for text in texts:
        number = int(text.partition(":")[0].partition("-")[2])
        orders.setdefault(order_of(number), []).append(text)
    return orders
