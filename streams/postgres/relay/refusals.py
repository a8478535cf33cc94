"""Statements of a relay that PostgreSQL refuses: reported in the log and in health, and tried again."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog

from streams.postgres.errors import StatementRefused
from streams.postgres.relay.counts import RelayCounts

log = structlog.get_logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
#: Seconds between two lines of the log about one thing that lasts.
_TOLD_EVERY = 30.0


class PublishRefusals:
    """Counts and tells refusals by what was refused, and paces the next attempt."""

    def __init__(self, counts: RelayCounts, stopping: asyncio.Event) -> None:
        self._counts = counts
        self._stopping = stopping
        self._why: dict[str, str] = {}
        self._pauses: dict[str, float] = {}
        self._told: dict[str, tuple[str, float]] = {}

    async def wait_after(self, what: str, error: StatementRefused) -> None:
        """Tell of a refusal, then wait, longer each time, until the next attempt or the stop."""
        self.tell(what, error)
        await self.pause(what)

    def tell(self, what: str, error: StatementRefused) -> None:
        """Count and tell a refusal."""
        self._why[what] = str(error)
        self._counts.refused_by_database("; ".join(self._why.values()))
        self._log(what, str(error))

    async def pause(self, what: str) -> None:
        """Wait, longer each time, until the next attempt or the stop."""
        pause = self._pauses[what] = min(max(self._pauses.get(what, 0.0) * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopping.wait()

    def over(self, what: str) -> None:
        """It was done."""
        if self._why.pop(what, None) is None:
            return
        self._pauses.pop(what, None)
        del self._told[what]
        log.info("relay_goes_on", what=what)
        if self._why:
            self._counts.waiting = "; ".join(self._why.values())
        else:
            self._counts.database_does()

    def _log(self, what: str, why: str) -> None:
        # The numbers in it change with each attempt.
        kind = "".join(letter for letter in why.partition(": ")[0] if not letter.isdigit())
        logged, at = self._told.get(what, ("", 0.0))
        if kind == logged and time.monotonic() - at < _TOLD_EVERY:
            return
        self._told[what] = kind, time.monotonic()
        log.warning(
            "relay_waits",
            error=why,
            attempts=self._counts.attempts,
            action="tries again; what was published and not marked is not published again",
        )
