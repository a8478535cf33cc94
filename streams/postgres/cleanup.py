"""Cleans up the outbox and the inboxes of a database at intervals, as a background task of its program.

Several may run: an advisory lock lets one at a time clean. Nothing is locked but the rows that go, a batch at
a time, so relays, consumers and writers go on beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import structlog

from streams.errors import text_of
from streams.postgres.advice import advice
from streams.postgres.database import Database
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.inbox import ConsumerInbox, TransactionalInbox
from streams.postgres.inbox.consumer_status import consumers, transactional_inboxes
from streams.postgres.outbox.operations import cleanup
from streams.settings import Settings
from streams.units import DAY

log = structlog.get_logger(__name__)

#: Of the advisory lock: one cleans at a time.
_LOCK = 0x6F75_7403


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is done with stays, in seconds.

    Attributes:
        outbox: rows of the outbox that were published, archived ones too.
        inbox: what consumers have handled.
        duplicates_within: for how long after an event its duplicate may come; `inbox` must not be less.
    """

    outbox: float
    inbox: float
    duplicates_within: float

    @classmethod
    def of(cls, settings: Settings) -> Retention:
        """The retention of the settings. Raises SettingsError when they contradict each other."""
        return cls(
            outbox=settings.outbox_retention_days * DAY,
            inbox=settings.inbox_retention_days * DAY,
            duplicates_within=settings.duplicates_within(),
        )


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """The result of a cleanup: rows of the outbox, and entries by consumer."""

    outbox: int = 0
    inboxes: Mapping[str, int] = field(default_factory=dict)


class DatabaseCleanup:
    """Removes what is older than its retention. The database has a connection more than others need."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention

    async def run(self, every: float) -> None:
        """Clean up every so many seconds, until it is cancelled. What fails is logged, and tried again."""
        while True:
            try:
                done = await self.clean_up()
            except (DatabaseUnavailable, asyncpg.PostgresError) as error:  # such as tables not there yet
                why = text_of(error) + (advice(error) if isinstance(error, asyncpg.PostgresError) else "")
                log.warning("cleanup_failed", error=why, action=f"tries again in {every:g} s")
            else:
                if done is not None and (done.outbox or any(done.inboxes.values())):
                    log.info("cleaned_up", outbox=done.outbox, inboxes=dict(done.inboxes))
            await asyncio.sleep(every)

    async def clean_up(self) -> CleanedUp | None:
        """Clean up once; None when another program is cleaning up.

        Raises DatabaseUnavailable, and SettingsError when an inbox would forget what may come again.
        """
        async with self._alone() as is_ours:
            if not is_ours:
                return None
            async with self._database.acquire() as connection:
                removed = await cleanup(connection, self._retention.outbox)
                names = await consumers(connection), await transactional_inboxes(connection)
            return CleanedUp(removed, await self._inboxes(*names))

    async def _inboxes(self, names: Sequence[str], stored: Sequence[str]) -> dict[str, int]:
        retention, found = self._retention, {}
        days = retention.inbox / DAY
        for name in names:
            inbox = ConsumerInbox(self._database, name, duplicates_within=retention.duplicates_within)
            found[name] = await inbox.cleanup_old_entries(days)
        for name in stored:
            removed = await TransactionalInbox(name).cleanup_processed(self._database, days)
            found[name] = found.get(name, 0) + removed
        return found

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[bool]:
        """A transaction holds the lock meanwhile, and does nothing else, so that it keeps nobody from vacuum.
        A session would not do: behind a pooler it is another one for each transaction.
        """
        async with self._database.transaction() as holder:
            await holder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield bool(await holder.fetchval("SELECT pg_try_advisory_xact_lock($1)", _LOCK))
