"""Marks rows as published that change data capture has brought to Kafka.

The connector writes nothing into the outbox. But it confirms how far Kafka has the log, and what was
committed before a place that it has confirmed is published. So lag and cleanup mean the same by either
relay, and a slot that was lost begins again with the rows that are not marked.
"""

from __future__ import annotations

from streams.postgres.database import Connection
from streams.postgres.statements import statements

BATCH = 20_000
"""Rows that are marked at once, at most."""

_SQL = statements("cdc/cdc.sql")


class Marking:
    """Waits for the connector to pass rows, then marks them; call `step` again and again."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._place: int | None = None
        self._beginning: int | None = None

    async def step(self, connection: Connection) -> int:
        """Mark what has been passed since the last step, then look for what is next; the rows marked."""
        marked = 0
        beginning = await connection.fetchval(_SQL["beginning"])
        if self._rows and beginning == self._beginning:
            marked = len(await connection.fetch(_SQL["mark"], self._rows, self._place, beginning))
        if marked or not self._rows or beginning != self._beginning:
            self._rows = []
            if beginning is not None:
                self._rows = [row["position"] for row in await connection.fetch(_SQL["waiting"], BATCH)]
            self._beginning = beginning
            self._place = await connection.fetchval(_SQL["end_of_log"])
        return marked
