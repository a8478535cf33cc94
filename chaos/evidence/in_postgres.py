"""What PostgreSQL has of the orders, and whether it is what Kafka has: pure, but for `look`, which reads it.

An order that the API has accepted is on Kafka and in PostgreSQL; one whose client got no answer, in both or
in neither. On its way each is a row of the outbox, which a relay may write twice, but under one name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import asyncpg

from agents.cancellation import CancellationRefused, RequestCancellation
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import decoder, rows_in
from chaos.evidence.stores import Rows
from chaos.rig.records import ACCEPTED, Request
from demo.findings import Finding, finding

#: The CloudEvents source of what the orders API publishes.
SOURCE = "orders-api"
TABLE = "orders"
_BEGINS = frozenset({OrderPlaced.TOPIC, OrderSubmitted.TOPIC})
_CALLS_OFF = RequestCancellation.TOPIC
#: The `way` of an order that did not come by the API.
_OTHERS = "unknown"
_ORDERS = "SELECT id, way, status, reason, cancellation FROM orders ORDER BY position"
_OUTBOX = "SELECT id, aggregate_id, topic, published_at IS NOT NULL FROM outbox ORDER BY position"
_ANSWERS_WITHIN = 30.0
_decode = decoder(TABLE)


class OrderRow(NamedTuple):
    """An order's row."""

    order_id: str
    way: str
    status: str
    reason: str
    cancellation: str


class OutboxRecord(NamedTuple):
    """A row of the outbox."""

    message_id: str
    order_id: str
    topic: str
    published: bool


@dataclass
class DatabaseEvidence:
    """What is in PostgreSQL, each in the order in which it was inserted."""

    orders: list[OrderRow] = field(default_factory=list)
    outbox: list[OutboxRecord] = field(default_factory=list)


async def look(url: str) -> DatabaseEvidence:
    """Read all of it. Raises what asyncpg raises."""
    connection = await asyncpg.connect(url, timeout=_ANSWERS_WITHIN, command_timeout=_ANSWERS_WITHIN)
    try:
        orders = [OrderRow(*row) for row in await connection.fetch(_ORDERS)]
        return DatabaseEvidence(orders, [OutboxRecord(*row) for row in await connection.fetch(_OUTBOX)])
    finally:
        await connection.close()


def tracked(tables: Iterable[Mapping[str, Rows]]) -> dict[str, tuple[str, str]]:
    """Status and reason of each order, by the table on Kafka in the state of every lane."""
    return {order_id: (row["status"], row["reason"]) for order_id, _, row in rows_in(tables, TABLE, _decode)}


def nowhere(
    requests: Sequence[Request], database: DatabaseEvidence, messages: Iterable[SentMessage]
) -> frozenset[str]:
    """Orders that were not accepted, and of which there is nothing anywhere."""
    there = {each.order_id for each in database.orders} | {each.key for each in messages}
    return frozenset(each.order_id for each in requests if not each.accepted and each.order_id not in there)


def judge_accepted(
    requests: Sequence[Request], database: DatabaseEvidence, messages: Sequence[SentMessage]
) -> Finding:
    """Whether each order that was accepted is on both sides, and any other on both or on neither."""
    begun: dict[str, set[tuple[str, str]]] = defaultdict(set)
    copies = 0
    for each in messages:
        if each.source == SOURCE and each.topic in _BEGINS:
            begun[each.key].add((each.topic, each.message_id))
            copies += 1
    rows = Counter(each.order_id for each in database.orders)
    placed = {each.order_id for each in database.orders if each.way != _OTHERS}
    requested = {each.order_id: each for each in requests}
    accepted = {order_id for order_id, each in requested.items() if each.accepted}
    called_off = {each.key for each in messages if (each.source, each.topic) == (SOURCE, _CALLS_OFF)}
    wrong = {
        "accepted and not in PostgreSQL": sorted(accepted - placed),
        "accepted and not on Kafka": sorted(accepted - begun.keys()),
        "without an answer, and on one side only": sorted((placed ^ begun.keys()) - accepted),
        "on Kafka under two names": sorted(order_id for order_id, names in begun.items() if len(names) > 1),
        "in PostgreSQL twice": sorted(order_id for order_id, times in rows.items() if times > 1),
        "called off, and not on Kafka": sorted(
            order_id
            for order_id, each in requested.items()
            if each.called_off == ACCEPTED and order_id not in called_off
        ),
        "without a request": sorted((placed | begun.keys()) - requested.keys()),
    }
    unanswered = requested.keys() - accepted
    says = (
        f"{len(accepted):,} accepted over HTTP, {len(unanswered):,} not ({len(unanswered & placed):,} of them"
        f" are there); {copies - len(begun):,} came twice under one name"
    )
    return finding("every order that was accepted is in PostgreSQL and on Kafka once", wrong, says)


def judge_status(
    database: DatabaseEvidence, on_kafka: Mapping[str, tuple[str, str]], messages: Sequence[SentMessage]
) -> Finding:
    """Whether PostgreSQL says of each order what the table on Kafka says, and knows each."""
    there = {each.order_id: (each.status, each.reason) for each in database.orders}
    refused = {each.key for each in messages if each.topic == CancellationRefused.TOPIC}
    wrong = {
        "in PostgreSQL alone": sorted(there.keys() - on_kafka.keys()),
        "on Kafka alone": sorted(on_kafka.keys() - there.keys()),
        "of another status than on Kafka": [
            f"{order_id} is {' '.join(there[order_id])}, not {' '.join(on_kafka[order_id])}"
            for order_id in sorted(there.keys() & on_kafka.keys())
            if there[order_id] != on_kafka[order_id]
        ],
        "whose cancellation was refused on Kafka alone": [
            each.order_id
            for each in database.orders
            if each.cancellation == "requested" and each.order_id in refused
        ],
    }
    kinds = Counter(status for status, _ in there.values())
    says = ", ".join(f"{count:,} {status}" for status, count in kinds.most_common()) or "no order"
    return finding("PostgreSQL says of every order what Kafka says", wrong, says)


def judge_outbox(database: DatabaseEvidence, messages: Sequence[SentMessage]) -> Finding:
    """Whether every row of the outbox is on Kafka, nothing else is, and each order's rows came in order."""
    first: dict[tuple[str, str], float] = {}
    for each in messages:
        if each.source == SOURCE:
            name = each.topic, each.message_id
            first[name] = min(first.get(name, each.time), each.time)
    rows = {(each.topic, each.message_id) for each in database.outbox}
    wrong = {
        "rows that are not on Kafka": [name for _, name in sorted(rows - first.keys())],
        "messages without a row": [name for _, name in sorted(first.keys() - rows)],
        "rows that wait": [each.message_id for each in database.outbox if not each.published],
        "orders whose rows came out of order": list(_out_of_order(database, first)),
    }
    several = sum(times > 1 for times in Counter(each.order_id for each in database.outbox).values())
    says = f"{len(rows):,} rows, {several:,} orders with more than one"
    return finding("every row of the outbox on Kafka, in its order's order", wrong, says)


def _out_of_order(database: DatabaseEvidence, first: Mapping[tuple[str, str], float]) -> Iterator[str]:
    """A row must have come for the first time no sooner than the one of its order before it."""
    latest: dict[str, float] = {}
    for row in database.outbox:
        came = first.get((row.topic, row.message_id))
        if came is None:
            continue
        if came < latest.get(row.order_id, came):
            yield row.message_id
        latest[row.order_id] = came
