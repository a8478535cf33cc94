"""Orders as PostgreSQL has them, compared with Kafka's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agents.settings import OrderSettings
from demo.evidence import DemoEvidence, table_of
from demo.findings import Finding, finding
from demo.purchases import Purchase
from schemas import latest
from streams.model.codecs import AvroCodec, Schemas
from streams.postgres.database import Connection, connect
from tables.orders import ORDERS, TrackedOrder

_LOOK_EVERY = 0.2
_codec = AvroCodec(TrackedOrder, latest(ORDERS.name), Schemas())


async def look(settings: OrderSettings, evidence: DemoEvidence, *, orders: int, within: float) -> None:
    """Add what the table on Kafka and the one in PostgreSQL say of each order: `confirmed`, `pending`, or why
    it was cancelled. PostgreSQL may be behind: it is waited for while it changes, and for `within` seconds.
    """
    rows = await table_of(settings.brokers(), f"{settings.app_id}-{ORDERS.name}-changelog", _codec)
    evidence.tracked = {name: row.reason or row.status for name, row in rows.items()}
    connection = await connect(settings.postgres())
    try:
        changed = time.monotonic()
        before = found = await _read(connection)
        while len(_ended(found)) < orders and time.monotonic() - changed < within:
            await asyncio.sleep(_LOOK_EVERY)
            found = await _read(connection)
            if found != before:
                before, changed = found, time.monotonic()
    finally:
        await connection.close()
    evidence.in_postgres = found


def judge_postgres(purchases: Sequence[Purchase], evidence: DemoEvidence) -> Finding:
    """Of each placed order PostgreSQL says what the table on Kafka says, and of no other anything."""
    there, tracked = evidence.in_postgres or {}, evidence.tracked
    wanted = {purchase.order_id for purchase in purchases}
    wrong = {
        "not in PostgreSQL": sorted(wanted - there.keys()),
        "in PostgreSQL but never placed": sorted(there.keys() - wanted),
        "another status than on Kafka": sorted(
            f"{name} is {there[name]}, not {tracked.get(name)}"
            for name in wanted & there.keys()
            if there[name] != tracked.get(name)
        ),
    }
    return finding(
        "PostgreSQL says what Kafka says", wrong, f"{len(_ended(there)):,} orders have ended there"
    )


async def _read(connection: Connection) -> dict[str, str]:
    rows = await connection.fetch("SELECT id, status, reason FROM orders")
    return {row["id"]: row["reason"] or row["status"] for row in rows}


def _ended(found: dict[str, str]) -> list[str]:
    return [name for name, status in found.items() if status != "pending"]
