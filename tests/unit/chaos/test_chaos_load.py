"""The load of a run brings files and poison as planned, and waits for an object store that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from good_post import Written

from agents.commands import OrderSubmitted
from agents.messages import Order, OrderPlaced
from chaos.evidence.letters import is_poison
from chaos.load.called_off import is_apart
from chaos.load.clients import ATTACHED
from chaos.load.load import Load
from chaos.rig.records import LARGEST
from demo.purchases import attached_bytes, orchestrated, purchases
from demo.trouble import poison
from streams.model.claim import DATAREF, claim_in
from streams.model.claim_checks import ClaimChecks
from streams.testing.blobs import MemoryBlobs
from tests.waiting import eventually_async

ORDERS = 400
BOUGHT = purchases(ORDERS)
BEGINS = {OrderPlaced.TOPIC, OrderSubmitted.TOPIC}


Run = Callable[..., Awaitable[None]]


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
    monkeypatch.setattr("chaos.load.clients.AIOKafkaProducer", cluster)
    return cluster


@pytest.fixture
def load(blobs: MemoryBlobs, cluster: Cluster) -> Run:
    async def run(shop: Any = None, called_off: float = 0.0) -> None:
        claims = ClaimChecks(blobs, bucket=blobs.bucket, threshold=1000)
        await Load("", seed=1, rate=1e6, most=ORDERS, called_off=called_off, shop=shop).run(claims)

    return run


async def test_orders_files_and_poison_come_as_planned(cluster: Cluster, load: Run) -> None:
    await load()
    by_reference = {each.key for each in cluster.orders if DATAREF in dict(each.headers)}
    large = {b.order_id.encode() for b in BOUGHT if attached_bytes(b, ATTACHED, LARGEST) > 1000}
    assert large <= by_reference
    assert len(by_reference) > 10
    assert cluster.dangling == 0, "files are stored before their orders are sent"
    for_sagas = {each.key for each in cluster.orders if each.topic == OrderSubmitted.TOPIC}
    others = {each.key for each in cluster.orders if each.topic == OrderPlaced.TOPIC}
    assert for_sagas == {each.order_id.encode() for each in BOUGHT if orchestrated(each)}
    assert others == {each.order_id.encode() for each in BOUGHT if not orchestrated(each)}
    planned = {bad.record.value for each in BOUGHT if (bad := poison(each)) is not None}
    assert {each.value for each in cluster.taken if is_poison(each)} == planned
    assert len(planned) == 5


async def test_what_the_object_store_refused_is_sent_when_it_returns(
    cluster: Cluster, blobs: MemoryBlobs, load: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.load.load._AFTER_OUTAGE", 0.01)
    blobs.down = True
    sending = asyncio.create_task(load())
    await eventually_async(lambda: blobs.faults["down"] > 50, "files are refused")
    without = {each.key for each in cluster.orders}
    blobs.down = False
    await sending
    assert len(without) < ORDERS
    assert {each.key for each in cluster.orders} == {each.order_id.encode() for each in BOUGHT}
    assert cluster.dangling == 0


class Shop:
    """Takes each request."""

    def __init__(self) -> None:
        self.placed: dict[str, str] = {}
        self.once: set[str] = set()
        self.called_off: dict[str, str] = {}

    async def place(self, order: Order, way: str, files: Any = (), *, once: bool = False) -> None:
        assert self.placed.setdefault(order.order_id, way) == way  # clients repeat themselves
        if once:
            self.once.add(order.order_id)

    async def call_off(self, order_id: str, way: str) -> None:
        self.called_off[order_id] = way


async def test_orders_go_over_http_or_to_kafka_each_once(cluster: Cluster, load: Run) -> None:
    shop = Shop()
    await load(shop)
    to_kafka = {(each.key or b"").decode() for each in cluster.orders}
    assert to_kafka | shop.placed.keys() == {each.order_id for each in BOUGHT}
    assert to_kafka & shop.placed.keys() == set()
    assert len(shop.placed) > ORDERS / 2
    assert len(to_kafka) > ORDERS / 5
    assert not shop.once
    way = {each.order_id: "submitted" if orchestrated(each) else "placed" for each in BOUGHT}
    assert shop.placed.items() <= way.items()
    by_reference = {each.key for each in cluster.orders if DATAREF in dict(each.headers)}
    assert len(by_reference) > 10, "large files take the way by the object store"


async def test_called_off_orders_are_asked_once_unless_going_both_ways(cluster: Cluster, load: Run) -> None:
    shop = Shop()
    await load(shop, called_off=0.2)
    apart = {name for name in shop.placed if is_apart(name)}
    assert shop.once == apart == shop.called_off.keys()
    assert all(shop.placed[name] == way for name, way in shop.called_off.items())
    on_kafka = [(each.key or b"").decode() for each in cluster.taken if each.topic in BEGINS]
    both_ways = {name for name in on_kafka if is_apart(name)}
    assert both_ways
    assert not both_ways & apart
    assert all(on_kafka.count(name) >= 2 for name in both_ways)
