"""The load of a run brings files and poison as planned, and waits for an object store that is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from good_post import Written

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from chaos.letters import is_poison
from chaos.load import Load
from chaos.payloads import ATTACHED
from chaos.records import LARGEST
from chaos.waiting import until
from demo.purchases import attached_bytes, orchestrated, purchases
from demo.trouble import poison
from streams.claims.checks import ClaimChecks
from streams.claims.claim import DATAREF, claim_in
from streams.testing.blobs import MemoryBlobs

ORDERS = 400
BOUGHT = purchases(ORDERS)
BEGINS = {OrderPlaced.TOPIC, OrderSubmitted.TOPIC}


class Cluster:
    """Takes what a producer sends; says of each reference whether its object was there."""

    def __init__(self, blobs: MemoryBlobs) -> None:
        self.taken: list[Written] = []
        self.dangling = 0
        self._blobs = blobs

    def __call__(self, **_: Any) -> Cluster:
        return self

    async def start(self) -> None:
        """As a producer does."""

    async def stop(self) -> None:
        """As a producer does."""

    async def send_and_wait(
        self, topic: str, value: bytes, *, key: bytes, headers: list[tuple[str, bytes]]
    ) -> None:
        claim = claim_in(dict(headers))
        self.dangling += claim is not None and claim.name not in self._blobs.names
        self.taken.append(Written(topic, 0, len(self.taken), key, value, headers=headers))

    @property
    def orders(self) -> list[Written]:
        return [each for each in self.taken if each.topic in BEGINS and not is_poison(each)]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def cluster(blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(blobs)
    monkeypatch.setattr("chaos.load.AIOKafkaProducer", cluster)
    return cluster


def load() -> Load:
    return Load("", seed=1, rate=1e6, most=ORDERS)


def claims(blobs: MemoryBlobs) -> ClaimChecks:
    return ClaimChecks(blobs, bucket=blobs.bucket, threshold=1000)


async def test_files_are_in_the_object_store_before_their_orders_are_sent(
    cluster: Cluster, blobs: MemoryBlobs
) -> None:
    await load().run(claims(blobs))
    by_reference = {each.key for each in cluster.orders if DATAREF in dict(each.headers)}
    large = {b.order_id.encode() for b in BOUGHT if attached_bytes(b, ATTACHED, LARGEST) > 1000}
    assert large <= by_reference
    assert len(by_reference) > 10
    assert cluster.dangling == 0


async def test_half_of_the_orders_are_for_sagas(cluster: Cluster, blobs: MemoryBlobs) -> None:
    await load().run(claims(blobs))
    for_sagas = {each.key for each in cluster.orders if each.topic == OrderSubmitted.TOPIC}
    others = {each.key for each in cluster.orders if each.topic == OrderPlaced.TOPIC}
    assert for_sagas == {each.order_id.encode() for each in BOUGHT if orchestrated(each)}
    assert others == {each.order_id.encode() for each in BOUGHT if not orchestrated(each)}
    assert len(for_sagas) == len(others)


async def test_all_the_poison_comes(cluster: Cluster, blobs: MemoryBlobs) -> None:
    await load().run(claims(blobs))
    planned = {bad.record.value for each in BOUGHT if (bad := poison(each)) is not None}
    assert {each.value for each in cluster.taken if is_poison(each)} == planned
    assert len(planned) == 5


async def test_what_an_object_store_that_is_away_did_not_take_is_sent_when_it_is_back(
    cluster: Cluster, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.load._AFTER_OUTAGE", 0.01)
    blobs.down = True
    sending = asyncio.create_task(load().run(claims(blobs)))
    await until(lambda: blobs.faults["down"] > 50, "files are refused", within=20)
    without = {each.key for each in cluster.orders}
    blobs.down = False
    await sending
    assert len(without) < ORDERS
    assert {each.key for each in cluster.orders} == {each.order_id.encode() for each in BOUGHT}
    assert cluster.dangling == 0
