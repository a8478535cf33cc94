"""What one order writes, either way: messages, rows, commits and bytes, counted on a broker in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from agents.choreographies import stock_first
from agents.commands import OrderSubmitted
from agents.gateway.cards import ACCEPTED, DECLINED
from agents.gateway.testing import FakeGateway
from agents.messages import Order, OrderCancelled, OrderConfirmed, OrderLine, OrderPlaced, StockReceived
from agents.order_saga import orchestrated
from benchmarks.growth.part import GrowthPlan, PartResult
from benchmarks.sections import NotMeasured, ReportTable
from schemas import latest
from streams.engine.life.lane import Lane
from streams.engine.life.positions.declared import declare
from streams.engine.life.state import LaneState
from streams.engine.staging.keys import TIMER
from streams.model.application import Application
from streams.model.choreography import choreography
from streams.model.codecs import Schemas, avro, decode_row, encode_row
from streams.model.envelope import headers_size, new_headers
from streams.model.layout import LANE, Layout
from streams.model.message import Message
from streams.ports import TP, Ports
from streams.saga.state import LOG_BOUND, LogEntry, SagaRow
from streams.system import NoFaults, SystemClock
from streams.testing.cluster import FakeCluster
from streams.testing.store import MemoryStores
from tables.sagas import ORDER_SAGAS

_SKUS = ("apple", "pear")
_NOWHERE = "AQ"
_ENDS_WITHIN = 30.0
_LOOK_EVERY = 0.02
#: A lane that has written nothing for so long is done, in seconds.
_QUIET = 0.5
_NOTE = (
    "Counted: an order of two lines by itself in one lane, so that nearly each message has a commit of its"
    " own; under load thousands share one, and a row that changes twice in it is written once. Messages are"
    " those that the order's own causes. Rows are changelog records, timers set and taken away among them,"
    " without source positions and ids of the inbox; bytes are keys, values and headers of all of it."
)


class OrderCase(NamedTuple):
    """An order to count: what begins it, the topic of its end, with which card it is paid, where it goes."""

    title: str
    begin: type[OrderPlaced] | type[OrderSubmitted]
    end: type[OrderConfirmed] | type[OrderCancelled]
    card: str = ACCEPTED
    country: str = "US"


CASES = (
    OrderCase("choreographed, confirmed", OrderPlaced, OrderConfirmed),
    OrderCase("orchestrated, confirmed", OrderSubmitted, OrderConfirmed),
    OrderCase("choreographed, card declined", OrderPlaced, OrderCancelled, card=DECLINED),
    OrderCase("orchestrated, card declined", OrderSubmitted, OrderCancelled, card=DECLINED),
    OrderCase("choreographed, not shipped there", OrderPlaced, OrderCancelled, country=_NOWHERE),
    OrderCase("orchestrated, not shipped there", OrderSubmitted, OrderCancelled, country=_NOWHERE),
)


@dataclass(slots=True)
class OrderWrites:
    """What an order has written. `saga_bytes` are those of its saga's row, each time that it was written;
    `saga` is the last of them.
    """

    commits: int
    messages: Counter[str]
    rows: Counter[str]
    timers: int
    size: int
    saga_bytes: list[int]
    saga: bytes = b""

    def cells(self) -> list[str]:
        """As the table has them."""
        rows = sum(self.rows.values())
        figures = (sum(self.messages.values()), rows, self.timers, self.commits, self.size)
        return [f"{figure:,}" for figure in figures]


async def measure(plan: GrowthPlan) -> PartResult:
    """Each case once: they do not differ."""
    counted = {case.title: await count(case) for case in CASES}
    table = ReportTable(
        "What one order writes",
        ("", "messages", "rows", "of them timers", "commits", "bytes"),
        [[title, *found.cells()] for title, found in counted.items()],
    )
    good, bad = (counted[title].saga_bytes for title in ("orchestrated, confirmed", CASES[-1].title))
    full = full_row_bytes(counted[CASES[-1].title].saga)
    plan.say(f"  a saga's row: {good}, {bad}; with a full log {full} bytes")
    sizes = (
        "The saga's row is written whole with each transition: of the order that is confirmed"
        f" {_listed(good)} bytes, {sum(good):,} in all; of the one that is not shipped {_listed(bad)}, in all"
        f" {sum(bad):,}. With a full log of {LOG_BOUND} entries it has about {full:,}."
    )
    return PartResult(table, [_NOTE, sizes])


async def count(case: OrderCase) -> OrderWrites:
    """Take one order through a lane in memory, to its end and until all is quiet."""
    clock = SystemClock()
    app = Application(
        Layout("counts", 1, 1),
        choreography(*stock_first.routes.values(), *orchestrated),
        avro(latest, Schemas()),
        resources={"gateway": FakeGateway(), "clock": clock},
    )
    topics = {spec.name: spec.partitions for spec in declare(app, replication=1)}
    cluster = FakeCluster(topics, max_batch=2 << 20)
    lane = Lane(app, 0, Ports(cluster, MemoryStores(), clock, NoFaults()))
    running = asyncio.create_task(lane.run())
    try:
        async with asyncio.timeout(_ENDS_WITHIN):
            for sku in _SKUS:
                _post(app, cluster, StockReceived(sku=sku, units=10))
            await _quiet(lane, len(_SKUS))
            before = {tp.topic: cluster.log(tp).end for tp in _partitions(topics)}
            _post(app, cluster, case.begin(order=_order(case)))
            await _quiet(lane, len(_SKUS) + 1)
    except TimeoutError:
        raise NotMeasured(f"{case.title}: the order did not end within {_ENDS_WITHIN:g} s") from None
    finally:
        lane.stop()
        await running
    if not cluster.visible(case.end.TOPIC):
        raise NotMeasured(f"{case.title}: there is no {case.end.__name__}")
    return _counted(app, cluster, before, case.begin.TOPIC)


def _counted(app: Application, cluster: FakeCluster, before: dict[str, int], began: str) -> OrderWrites:
    found = OrderWrites(0, Counter(), Counter(), 0, 0, [])
    transactions = set()
    for tp in _partitions(before):
        for entry in cluster.entries(tp):
            record = entry.record
            if entry.offset < before[tp.topic] or record is None or tp.topic == began:
                continue
            transactions.add(id(entry.transaction))
            key, value = record.key or b"", record.value or b""
            size = len(key) + len(value) + headers_size(record.headers)
            table = app.changelogs.get(tp.topic)
            if table is None:
                found.messages[tp.topic] += 1
            elif table in app.tables or (table == LANE and key[:1] == TIMER):
                found.rows[table] += 1
                found.timers += table == LANE
                if table == ORDER_SAGAS.name:
                    found.saga_bytes.append(len(key) + len(value))
                    found.saga = value
            found.size += size
    found.commits = len(transactions)
    return found


def full_row_bytes(saga: bytes) -> int:
    """The bytes of this saga's row once its log is full of entries as retries of a step make them."""
    codec = avro(latest, Schemas())(SagaRow, ORDER_SAGAS.name)
    row = decode_row(codec, saga)
    entry = LogEntry(
        number=row.entries + LOG_BOUND,
        time=row.created_at,
        step="process_payment",
        before="compensating",
        after="compensating",
        detail="timed_out: no reply within 30 s; again in 300 s",
    )
    row = msgspec.structs.replace(row, log=(entry,) * LOG_BOUND, entries=entry.number)
    return len(encode_row(codec, row))


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)


def _order(case: OrderCase) -> Order:
    lines = tuple(OrderLine(sku=sku, units=1) for sku in _SKUS)
    return Order(
        order_id="cdnow-00001",
        customer="customer-1",
        lines=lines,
        total_cents=1000,
        card=case.card,
        country=case.country,
    )


def _post(app: Application, cluster: FakeCluster, message: Message) -> None:
    headers = new_headers(message.TOPIC, message.key, source="outside", time=1.7e9, message_id=message.key)
    body = app.message_codecs[message.TOPIC].encode(message)
    cluster.produce(TP(message.TOPIC, 0), message.key.encode(), body, headers)


def _partitions(topics: Sequence[str] | dict[str, int]) -> list[TP]:
    return [TP(topic, 0) for topic in topics]


async def _quiet(lane: Lane, least: int) -> None:
    """Wait until the lane is open, has handled so many messages, and has handled no more for a while."""
    handled, since = -1, 0.0
    while lane.state is not LaneState.OPEN or lane.counters.handled < least or lane.backlog or since < _QUIET:
        await asyncio.sleep(_LOOK_EVERY)
        since = since + _LOOK_EVERY if handled == lane.counters.handled else 0.0
        handled = lane.counters.handled
