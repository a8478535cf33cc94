"""The participants that the engines share, as the benchmark sees them: tables, and the ends of orders."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.shipping.model import DESTINATIONS
from benchmarks.peers.shop import SCHEMA
from demo.evidence import DemoEvidence, Settlement
from demo.purchases import Purchase, order, receipts
from streams.postgres import Connection
from tables.stock import StockLevel


async def open_shop(connection: Connection) -> None:
    """Make the tables, and put all stock on the shelves."""
    await connection.execute(SCHEMA)
    await connection.executemany(
        "INSERT INTO stock (sku, received, on_hand) VALUES ($1, $2, $2)",
        [(each.sku, each.units) for each in receipts()],
    )
    await connection.executemany(
        "INSERT INTO destinations VALUES ($1)", [(country,) for country in DESTINATIONS]
    )
    await connection.execute("ANALYZE")


def as_json(bought: Iterable[Purchase]) -> str:
    """Orders as the engines' programs are given them."""
    return json.dumps([_plain(each) for each in bought])


def _plain(purchase: Purchase) -> dict[str, Any]:
    ordered = order(purchase)
    pieces = ordered.skus()
    return {
        "order_id": ordered.order_id,
        "skus": [each.sku for each in pieces],
        "units": [each.units for each in pieces],
        "cents": ordered.total_cents,
        "card": ordered.card,
        "country": ordered.country,
    }


async def look(connection: Connection, submitted: Sequence[Purchase]) -> DemoEvidence:
    """What the tables say; what the gateway has done is not in it yet."""
    settled = await connection.fetch("SELECT order_id, outcome FROM settled")
    stock = await connection.fetch("SELECT sku, received, on_hand, reserved, shipped FROM stock")
    return evidence_of({row["order_id"]: row["outcome"] for row in settled}, map(dict, stock), submitted)


def evidence_of(
    settled: Mapping[str, str], stock: Iterable[Mapping[str, Any]], submitted: Sequence[Purchase]
) -> DemoEvidence:
    """The rows as the demo's check reads them. An order is settled by a row of its own, so at most once."""
    placed = {each.order_id: order(each) for each in submitted}
    levels = {row["sku"]: StockLevel(**{name: row[name] for name in _COUNTS}) for row in stock}
    return DemoEvidence(
        settlements=[Settlement(name, placed[name], how) for name, how in settled.items() if name in placed],
        received=Counter({sku: level.received for sku, level in levels.items()}),
        shipped=Counter({sku: level.shipped for sku, level in levels.items()}),
        stock=levels,
    )


_COUNTS = ("received", "on_hand", "reserved", "shipped")
