"""The relay by change data capture: looks after the connector that does the work."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import NamedTuple

import asyncpg
import structlog

from streams.postgres.advice import advice
from streams.postgres.cdc.connect import STOPPED, Connect, ConnectorStatus, TaskStatus
from streams.postgres.cdc.connector import connector_settings
from streams.postgres.cdc.lifecycle import begin_again, ensure_publication
from streams.postgres.cdc.marking import LOCK_WAIT, Marking
from streams.postgres.database import REFUSING, Connection, Database
from streams.postgres.errors import StatementRefused
from streams.postgres.outbox_owner import RelayKind, claim_outbox
from streams.postgres.relay.options import After
from streams.postgres.replication_slot import WARN_AT_BYTES, SlotLag, slot_lag
from streams.postgres.statements import statements

_SQL = statements("cdc/cdc.sql")
log = structlog.get_logger()

STEP = 0.5
"""Seconds between two looks."""

RESTART_EVERY = 5.0
"""Seconds between two restarts of what has failed: its cause may last."""

SLOT_WITHIN = 60.0
"""Seconds after a beginning in which the connector has made its slot."""

STALLED_AFTER = 60.0
"""Seconds without a confirmation by the connector, while rows wait, until the relay reports it."""

_STALLED = (
    f"the connector runs, but has confirmed nothing for over {STALLED_AFTER:g} s while rows wait. That is so"
    " while brokers are away, for some minutes afterwards, and in a transaction that takes so long. Otherwise"
    " restart Kafka Connect (docs/outbox.md)"
)


class CdcStatus(NamedTuple):
    """State of the relay: `problem` is a sentence for operators, empty when all is well."""

    connector: ConnectorStatus | None
    slot: SlotLag | None
    largest: str = ""
    """The largest row that waits, where one was too large."""
    unmarked: str = ""
    """Why what the connector has relayed could not be marked; it relays none the less."""
    stalled: bool = False
    """Whether rows wait, and the connector has confirmed nothing for `STALLED_AFTER` seconds."""

    @property
    def standstill(self) -> str:
        """Why the connector relays nothing now; empty: it does."""
        if self.connector is None:
            return (
                "there is no connector for the outbox: a relay with STEADFAUST_OUTBOX=cdc makes it,"
                " and so does `steadfaust cdc start`"
            )
        if not self.largest:
            return self.connector.problem or (_STALLED if self.stalled else "")
        return (
            f'{self.connector.problem}. The largest row that waits is {self.largest}; docs/outbox.md, "By'
            ' change data capture", says how to go on without it'
        )

    @property
    def problem(self) -> str:
        """The connector's, else the slot's, else that of marking."""
        return self.standstill or ("" if self.slot is None else self.slot.trouble) or self.unmarked


async def cdc_status(database: Database, connect: Connect, slot_warn_at: int = WARN_AT_BYTES) -> CdcStatus:
    """State of the relay; the slot warns when it keeps so many bytes of the log.

    Raises DatabaseUnavailable or ConnectUnavailable.
    """
    connector, largest = await connect.status(), ""
    async with database.acquire() as connection:  # after it: a connector that runs has taken its slot
        slot = await slot_lag(connection, slot_warn_at)
        if connector is not None and any(map(_is_too_large, connector.failed)):
            largest = await connection.fetchval(_SQL["largest"]) or ""
    return CdcStatus(connector, slot, largest)


def _is_too_large(task: TaskStatus) -> bool:
    return any(word in task.trace for word in ("RecordTooLarge", "RecordBatchTooLarge", "MessageTooLarge"))


class CdcRelay:
    """Keeps the connector configured and running, warns of its slot, and marks what it has relayed.

    Call `step` again and again, also when something could not be reached. Several may run.

    Arguments:
        after: what to do with a row that was relayed.
        slot_warn_at: bytes of the log that the slot may keep before it warns.
    """

    def __init__(
        self,
        database: Database,
        connect: Connect,
        *,
        after: After = After.MARK,
        slot_warn_at: int = WARN_AT_BYTES,
    ) -> None:
        self._database = database
        self._connect = connect
        self._slot_warn_at = slot_warn_at
        self._marking = Marking(database.url, after)
        self._ages: list[float] = []
        self._configured = False
        self._restarted = 0.0
        self._began = self._ended = -math.inf
        self._told = self._begins = self._restarts = ""

    async def step(self) -> CdcStatus:
        """One look. Raises OutboxOwned, PoolerBetween, DatabaseUnavailable, StatementRefused or
        ConnectUnavailable.
        """
        try:
            return await self._step()
        except asyncpg.PostgresError as error:  # such as a right that is missing for now
            raise StatementRefused(f"PostgreSQL refused: {error}{advice(error)}") from error

    async def _step(self) -> CdcStatus:
        async with self._database.acquire() as connection:
            if not self._configured:
                await self._database.require_session("change data capture")
            # Also for what reads, which a lock of the whole table holds up; the pool takes it back.
            await connection.execute(f"SET lock_timeout = '{LOCK_WAIT:g}s'")
            await claim_outbox(connection, RelayKind.CDC)
            if not self._configured:
                await ensure_publication(connection)
            slot = await slot_lag(connection)
            if slot.is_lost if slot is not None else self._misses_slot():
                if slot is not None or not self._begins:
                    self._begin(slot.cause if slot is not None else "there is none")
                await begin_again(connection, self._connect)
                self._began, self._begins = time.monotonic(), ""
            unmarked = await self._mark(connection)
            stalled = self._marking.stalled_for > STALLED_AFTER
            may_end = stalled and time.monotonic() - self._ended > STALLED_AFTER
            if may_end and await connection.fetchval(_SQL["end_predecessor"]):
                log.warning("cdc_predecessor_ended")  # the task that waits for the slot tries again by itself
                self._ended = time.monotonic()
        if not self._configured:
            await self._connect.configure(connector_settings())
            self._configured = True
        status = await cdc_status(self._database, self._connect, self._slot_warn_at)
        if status.connector is None:
            self._configured = False  # removed meanwhile
        elif status.connector.state == STOPPED:
            await self._connect.resume()  # a relay that began again has ended before
        elif status.connector.needs_restart and time.monotonic() - self._restarted > RESTART_EVERY:
            if (kind := _kind(status.problem)) != self._restarts:
                log.warning("cdc_restarted", problem=status.problem, action="again while it fails")
            self._restarts = kind
            self._restarted = time.monotonic()
            await self._connect.restart_failed()
        return status._replace(unmarked=unmarked, stalled=stalled)

    async def _mark(self, connection: Connection) -> str:
        """Mark what was relayed; returns why that is refused. The connector is looked after all the same."""
        try:
            self._ages += await self._marking.step(connection)
        except StatementRefused as error:
            return str(error)
        except asyncpg.PostgresError as error:
            if isinstance(error, REFUSING) or connection.is_closed():
                raise
            return f"marking is refused: {error}{advice(error)}"
        return ""

    def marked(self) -> list[float]:
        """The ages of rows that were marked since the last call, in seconds since their insert."""
        ages, self._ages = self._ages, []
        return ages

    async def schemas(self, known: Collection[str]) -> dict[str, str]:
        """The schemas of messages in the outbox, by fingerprint, but for those that are known.

        Raises DatabaseUnavailable, StatementRefused.
        """
        try:
            async with self._database.acquire() as connection:
                rows = await connection.fetch(_SQL["schemas"], list(known))
        except asyncpg.PostgresError as error:
            raise StatementRefused(f"PostgreSQL refused: {error}{advice(error)}") from error
        return {row["fingerprint"]: row["schema"] for row in rows}

    def _misses_slot(self) -> bool:
        """Whether a slot that is not there should be: the connector makes it some seconds after it begins."""
        return time.monotonic() - self._began > SLOT_WITHIN

    def _begin(self, why: str) -> None:
        """Log once why it begins again, however often that is tried."""
        if why != self._begins:
            self._begins = why
            log.warning("cdc_begins_again", slot=why, effect="it relays the rows that wait in the table")

    def tell(self, problem: str) -> None:
        """Log what has changed, not what lasts."""
        kind = _kind(problem)
        if kind != self._told:
            self._told = kind
            if problem:
                log.warning("cdc_in_trouble", problem=problem)
            else:
                self._restarts = ""
                log.info("cdc_well")


def _kind(problem: str) -> str:
    """The text without its numbers, which change with each look."""
    return "".join(letter for letter in problem if not letter.isdigit())
