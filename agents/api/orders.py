"""Orders as PostgreSQL has them: one, a page of them, and one that is called off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from agents.api.placing import AGGREGATE
from agents.api.statements import SQL
from agents.api.wire import Line, OrderPage, OrderSummary, OrderView, Status
from agents.cancellation import RequestCancellation
from streams.postgres import Connection, Database, Outbox
from streams.postgres.advice import curable_told

#: Keys that one transaction of a cleanup forgets at most.
CLEANUP_BATCH = 1000
_END = 2**63 - 1
_lines = msgspec.json.Decoder(tuple[Line, ...]).decode


class Orders:
    """Reads orders, and asks for their cancellation. Each raises DatabaseUnavailable within `patience`,
    and StatementRefused for what an operator has to cure.
    """

    def __init__(self, database: Database, outbox: Outbox, *, patience: float) -> None:
        self._database = database
        self._outbox = outbox
        self._patience = patience

    async def find(self, order_id: str) -> OrderView | None:
        """An order, if there is one of that id."""
        async with self._connection() as connection:
            return await _find(connection, order_id)

    async def page(self, status: Status | None, after: int | None, limit: int) -> OrderPage:
        """So many orders behind a position, newest first."""
        start = _END if after is None else after
        async with self._connection() as connection:
            # One more, to see whether there is a next page.
            if status is None:
                rows = await connection.fetch(SQL["page"], start, limit + 1)
            else:
                rows = await connection.fetch(SQL["page_of_status"], start, limit + 1, status)
        orders = [OrderSummary(**_fields(row)) for row in rows[:limit]]
        return OrderPage(orders=orders, after=str(rows[limit - 1]["position"]) if len(rows) > limit else None)

    async def call_off(
        self, order_id: str, trace: str
    ) -> tuple[Literal["requested", "too_late", "unknown"], OrderView | None]:
        """Ask for an order's cancellation, once. An order that is settled stays as it is."""
        async with (
            self._connection() as connection,
            self._outbox.transaction(connection) as tx,
        ):
            if await connection.fetchval(SQL["call_off"], order_id):
                command = RequestCancellation(order_id=order_id)
                name = cancellation_id(order_id)
                tx.publish(command, name, aggregate_type=AGGREGATE, traceparent=trace)
            order = await _find(connection, order_id)
        if order is None:
            return "unknown", None
        return (
            "requested" if order.status == "pending" and order.cancellation == "requested" else "too_late",
            order,
        )

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with curable_told():
            async with self._database.acquire(within=self._patience) as connection:
                yield connection

    async def forget_keys(self) -> int:
        """Forget answers that have expired, a batch at a time; returns how many."""
        forgotten = 0
        while True:
            async with self._connection() as connection:
                done = await connection.execute(SQL["forget_keys"], CLEANUP_BATCH)
            count = int(done.rpartition(" ")[2])
            forgotten += count
            if count < CLEANUP_BATCH:
                return forgotten


def cancellation_id(order_id: str) -> str:
    """The id of the message that asks for an order's cancellation."""
    return f"{order_id}:cancellation"


async def _find(connection: Connection, order_id: str) -> OrderView | None:
    row = await connection.fetchrow(SQL["find"], order_id)
    return None if row is None else OrderView(**_fields(row), lines=_lines(row["lines"]))


def _fields(row: Any) -> dict[str, Any]:
    same = {name: row[name] for name in OrderSummary.__struct_fields__ if name != "order_id"}
    return {"order_id": row["id"], **same}
