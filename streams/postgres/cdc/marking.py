"""Marks rows as published that change data capture has brought to Kafka, or removes or archives them.

The connector writes nothing into the outbox. But it confirms how far Kafka has the log, and what was
committed before a place that it has confirmed is published. So lag and cleanup mean the same by either
relay, and a slot that was lost begins again with the rows that are not marked.
"""

from __future__ import annotations

import time

from streams.postgres.database import PASSING, Connection
from streams.postgres.errors import StatementRefused
from streams.postgres.lock_waits import lock_wait_told
from streams.postgres.relay.options import After
from streams.postgres.statements import statements

BATCH = 20_000
"""Rows that are marked at once, at most."""

LOCK_WAIT = 2.0
"""Seconds that marking waits for a lock of another session, before the next step."""

_SQL = statements("cdc/cdc.sql")
_DONE = statements("relay/relay.sql")


class Marking:
    """Waits for the connector to pass rows, then marks them; call `step` again and again.

    Arguments:
        url: of the database.
        after: what to do with a row then, as with polling relays. The connector reads new rows alone, so it
            takes no notice.
    """

    def __init__(self, url: str, after: After = After.MARK) -> None:
        self._url = url
        self._after = after
        self._rows: dict[int, float] = {}
        self._place: int | None = None
        self._beginning: int | None = None
        self._timeline = ""
        self._confirmed: str | None = None
        self._since = time.monotonic()

    @property
    def stalled_for(self) -> float:
        """Seconds for which rows have waited and the connector has confirmed nothing; 0 if no row waits."""
        return time.monotonic() - self._since if self._rows else 0.0

    async def step(self, connection: Connection) -> list[float]:
        """Mark what has been passed since the last step, then look for what is next.

        Returns the ages of the rows that were marked, in seconds since their insert. Raises StatementRefused,
        with who holds the lock, when it waits for one for longer than it may.
        """
        ages: list[float] = []
        row = await connection.fetchrow(_SQL["beginning"])
        beginning = row["beginnings"] if row else None
        confirmed = row["confirmed"] if row else None
        if row and row["timeline"] != self._timeline:
            self._timeline, self._rows = row["timeline"], {}
        if confirmed != self._confirmed:
            self._confirmed, self._since = confirmed, time.monotonic()
        if self._rows and beginning == self._beginning:
            ages = await self._mark(connection)
        if ages or not self._rows or beginning != self._beginning:
            await self._read_waiting(connection, beginning)
        return ages

    async def _read_waiting(self, connection: Connection, beginning: int | None) -> None:
        """Note the rows that wait, and a place in the log behind them; no rows without a beginning."""
        found = []
        if beginning is not None:
            found = await connection.fetch(_SQL["waiting"], BATCH)
        place = await connection.fetchval(_SQL["end_of_log"])
        # Assigned together: with an older place, rows would be marked before the connector has passed them.
        self._rows = {row["position"]: row["created"] for row in found}
        self._beginning, self._place = beginning, place
        self._since = time.monotonic()

    async def _mark(self, connection: Connection) -> list[float]:
        passed = await connection.fetchval(_SQL["passed"], self._place, self._beginning)
        if passed is None:
            return []
        self._since = time.monotonic()
        # What has been published stays so: nothing that comes between makes this wrong.
        await self._execute(connection)
        return [passed - created for created in self._rows.values()]

    async def _execute(self, connection: Connection) -> None:
        holder: list[str] = [""]
        watching = lock_wait_told(self._url, connection.get_server_pid(), holder.append, after=LOCK_WAIT / 2)
        try:
            async with connection.transaction(), watching:
                # Another session's lock must not keep us from looking after the connector.
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT:g}s'")
                await connection.execute(_DONE[self._after], list(self._rows))
        except PASSING as error:
            why = f"waits for {holder[-1]}" if holder[-1] else "is refused"
            raise StatementRefused(f"marking {why}: {error}") from error
