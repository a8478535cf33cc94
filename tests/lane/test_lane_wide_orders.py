"""Orders of ten thousand SKUs, and those that no service takes, on the lane that other orders share."""

import gc
import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from lane_checker import check_positions, dead_letters, latest
from lane_scenes import opened, post, until_so
from lane_worlds import Post, World
from test_lane_order_saga import Workload, order

from agents.choreographies import payment_first, stock_first
from agents.commands import OrderSubmitted
from agents.gateway.testing import FakeGateway
from agents.messages import OrderCancelled, OrderConfirmed, OrderPlaced, StockReceived
from agents.order_saga import orchestrated
from schemas import latest as schema
from streams.engine.way import attempt
from streams.host.loop import GC_THRESHOLD
from streams.local import Stack, local_stack
from streams.model.choreography import Choreography, choreography
from streams.model.codecs import Schemas, avro, decode_row
from streams.model.envelope import new_headers
from streams.model.message import Message
from streams.model.row_keys import split_row_key
from tables.orders import ORDERS, TrackedOrder
from tables.reservations import RESERVATION_TALLIES, Tally
from tables.stock import STOCK, StockLevel
from tables.values import MAX_LINES, MAX_ORDER_BYTES

#: So long that an order of all of them is nearly as large as one may be.
SKUS = [f"sku-{number:05}".ljust(27, "x") for number in range(MAX_LINES)]
SHORT = SKUS[4711]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Stack]:
    """A broker for each test: topics of the application have one name."""
    with local_stack(tmp_path / "kafka") as stack:
        yield stack


@pytest.fixture
def seldom_collected() -> Iterator[None]:
    """The garbage collector runs as in a worker: the fake broker keeps a million objects."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLD)
    yield
    gc.set_threshold(*before)


async def start(world: World, way: Choreography) -> None:
    wiring = choreography(*way.routes.values(), *orchestrated)
    await world.start(
        Workload(wiring, {"gateway": FakeGateway(), "clock": world.clock}),
        codecs=avro(schema, Schemas()),
        max_batch=4000,
        max_backlog=12_000,
        max_message_bytes=1_000_000,
    )


async def rows(world: World, table: Any) -> dict[str, Any]:
    codec = world.app.tables[table.name].codec
    found = await latest(world, table.name)
    return {split_row_key(key)[0].decode(): decode_row(codec, data) for (_, key), data in found.items()}


async def ends(world: World) -> dict[str, str]:
    found = {}
    for kind in (OrderConfirmed, OrderCancelled):
        for record in await world.records(kind.TOPIC):
            message = world.app.message_codecs[kind.TOPIC].decode(record.value or b"", None)
            assert message.key not in found, "settled twice"
            found[message.key] = getattr(message, "reason", "confirmed")
    return found


async def until_settled(world: World, orders: set[str]) -> dict[str, str]:
    """Wait until these are; how."""
    found: dict[str, str] = {}

    async def settled() -> bool:
        found.update(await ends(world))
        return orders <= found.keys()

    await until_so(world, settled, every=0.25)
    return found


STOOD_FOR = pytest.mark.verify("those of stock_first on the fake broker cover it")
ON_KAFKA = (pytest.mark.stack, STOOD_FOR)


@pytest.mark.promise("wide-orders", "both choreographies, and by saga")
@pytest.mark.parametrize(
    ("world", "way", "kind"),
    [
        pytest.param("fake", stock_first, OrderPlaced, marks=pytest.mark.slow("a million objects")),
        pytest.param("fake", payment_first, OrderPlaced, marks=STOOD_FOR),
        pytest.param("fake", stock_first, OrderSubmitted, marks=STOOD_FOR),
        pytest.param("kafka", stock_first, OrderPlaced, marks=ON_KAFKA),
        pytest.param("kafka", payment_first, OrderPlaced, marks=ON_KAFKA),
        pytest.param("kafka", stock_first, OrderSubmitted, marks=ON_KAFKA),
    ],
    ids=[f"{name}-{way}" for name in ("fake", "kafka") for way in ("stock_first", "payment_first", "saga")],
    indirect=["world"],
)
async def test_orders_of_ten_thousand_skus_end_while_others_go_on(
    world: World, way: Choreography, kind: Any, monkeypatch: pytest.MonkeyPatch, seldom_collected: None
) -> None:
    del seldom_collected
    # What other processes hold up is no handler's doing.
    monkeypatch.setattr(attempt, "perf_counter", time.thread_time)
    await start(world, way)
    lane = await opened(world, *(post(world, StockReceived(sku=s, units=9)) for s in SKUS if s != SHORT))
    await world.settled(StockReceived.TOPIC)
    wide = order("wide", *((sku, 1) for sku in SKUS[:-1] if sku != SHORT), (SKUS[0], 2))
    short = order("short", *((sku, 1) for sku in SKUS))
    assert 0.95 * MAX_ORDER_BYTES < len(msgspec.json.encode(short)) < MAX_ORDER_BYTES
    narrow = [order(f"narrow-{n}", (SKUS[n], 1), (SKUS[-1 - n], 2)) for n in range(20)]
    await world.post(post(world, kind(order=short)), post(world, kind(order=wide)))
    await world.post(*(post(world, kind(order=one)) for one in narrow))
    ids = {one.order_id for one in narrow}
    others = await until_settled(world, ids)
    assert {others[one] for one in ids} == {"confirmed"}
    settled = await until_settled(world, ids | {"wide", "short"})
    assert (settled["wide"], settled["short"]) == ("confirmed", "out_of_stock")

    gone = {SKUS[n]: 1 for n in range(20)} | {SKUS[-1 - n]: 2 for n in range(20)}
    for line in wide.lines:
        gone[line.sku] = gone.get(line.sku, 0) + line.units

    async def back() -> bool:
        tallies = await rows(world, RESERVATION_TALLIES)
        stock = await rows(world, STOCK)
        return (
            tallies["short"] == Tally(status="released", skus=MAX_LINES, awaited=0, refused=1)
            and tallies["wide"].status == "shipped"
            and all(not level.reserved and level.shipped == gone.get(sku, 0) for sku, level in stock.items())
        )

    await until_so(world, back, every=0.25)
    levels: dict[str, StockLevel] = await rows(world, STOCK)
    assert all(level.on_hand == 9 - gone.get(sku, 0) for sku, level in levels.items())
    counters = lane.lane.counters
    assert (counters.held_loop, counters.dead_letters, lane.lane.reopened) == (0, 0, 0)
    await lane.stop()
    await check_positions(world)


@pytest.mark.promise("order-limits")
@pytest.mark.parametrize("way", [stock_first, payment_first], ids=["stock_first", "payment_first"])
async def test_an_order_that_no_service_takes_is_cancelled(world: World, way: Choreography) -> None:
    await start(world, way)
    refused: dict[str, str] = {}
    lane = await world.open()
    for kind in (OrderPlaced, OrderSubmitted):
        of_each = {
            "no_lines": [],
            "too_many_lines": [("sku", 1)] * (MAX_LINES + 1),
            "order_too_large": [(f"{n:05}".ljust(100, "x"), 1) for n in range(6000)],
        }
        for reason, lines in of_each.items():
            one = order(f"{reason}-{kind.__name__}", *lines)
            refused[one.order_id] = reason
            await world.post(post(world, kind(order=one)))
    assert await until_settled(world, {*refused}) == refused
    await world.settled(*world.app.routes)
    tracked: dict[str, TrackedOrder] = await rows(world, ORDERS)
    assert {key: row.reason for key, row in tracked.items()} == refused
    assert {row.status for row in tracked.values()} == {"cancelled"}
    assert not await rows(world, RESERVATION_TALLIES), "its stock was asked for"
    assert lane.lane.counters.dead_letters == 0
    await lane.stop()


BAD = {
    "no pieces": order("bad", ("apple", 0)),
    "less than no pieces": order("bad", ("apple", -1)),
    "too many pieces": order("bad", ("apple", 10**9 + 1)),
    "pieces of 62 bits": order("bad", ("apple", 2**62)),
    "less than no cents": order("bad", ("apple", 1), cents=-1),
    "too many cents": order("bad", ("apple", 1), cents=10**12 + 1),
    "cents of 63 bits": order("bad", ("apple", 1), cents=2**63 - 1),
    "no sku": order("bad", ("", 1)),
    "a long sku": order("bad", ("x" * 201, 1)),
    "a long id": order("x" * 201, ("apple", 1)),
}


def unchecked(world: World, message: Message) -> Post:
    """A message as a client in another language sends it: nobody has looked at its bounds."""
    out, codec = BytesIO(), world.app.message_codecs[message.TOPIC]
    fastavro.schemaless_writer(
        out, fastavro.parse_schema(json.loads(codec.schema)), msgspec.to_builtins(message)
    )
    name = f"{message.key}-1"
    headers = new_headers(message.TOPIC, message.key, source="outside", time=1e9, message_id=name)
    return world.raw(
        message.TOPIC, message.key, out.getvalue(), [*headers, ("schema-fingerprint", codec.fingerprint)]
    )


@pytest.mark.promise("order-limits")
async def test_no_handler_sees_what_is_out_of_bounds(world: World) -> None:
    await start(world, stock_first)
    lane = await world.open()
    deliveries = [StockReceived(sku="apple", units=units) for units in (10**9 + 1, 2**62, 0, -1)]
    await world.post(
        *(unchecked(world, OrderPlaced(order=bad)) for bad in BAD.values()),
        *(unchecked(world, OrderSubmitted(order=bad)) for bad in BAD.values()),
        *(unchecked(world, bad) for bad in deliveries),
        post(world, StockReceived(sku="pear", units=10**9)),
        post(world, OrderPlaced(order=order("good", ("pear", 10**9), cents=10**12))),
    )
    assert (await until_settled(world, {"good"})) == {"good": "confirmed"}
    await world.settled(OrderPlaced.TOPIC, OrderSubmitted.TOPIC, StockReceived.TOPIC)
    for kind, count in ((OrderPlaced, len(BAD)), (OrderSubmitted, len(BAD)), (StockReceived, 4)):
        letters = await dead_letters(world, kind.TOPIC)
        assert len(letters) == count
        assert {dict(letter.headers)["dlq-error-type"] for letter in letters} == {b"Undecodable"}
        assert {dict(letter.headers)["dlq-retry-count"] for letter in letters} == {b"0"}
    assert {gate.breaker.state for gate in lane.lane.gates.values()} <= {"closed"}
    await lane.stop()


@pytest.mark.promise("order-limits")
async def test_the_pieces_of_a_sku_are_summed_up(world: World) -> None:
    await start(world, stock_first)
    lane = await world.open()
    heavy = order("heavy", *[("pear", 10**9)] * MAX_LINES)
    await world.post(post(world, OrderPlaced(order=heavy)))
    assert await until_settled(world, {"heavy"}) == {"heavy": "out_of_stock"}
    assert lane.lane.counters.dead_letters == 0
    await lane.stop()
