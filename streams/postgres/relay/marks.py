"""Marks published rows. A row that another session has locked holds up its own shard, and no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from streams.ports import Faults
from streams.postgres.errors import DatabaseUnavailable, StatementRefused
from streams.postgres.outbox import OutboxRow
from streams.postgres.relay.counts import RelayCounts
from streams.postgres.relay.refusals import PublishRefusals
from streams.postgres.relay.session import RelaySession

log = structlog.get_logger(__name__)

#: Rows that were published and could not be marked: so many are remembered.
_REMEMBERED = 100_000
#: Characters of an error that a row keeps.
_KEPT = 1000
_MARKING = "marking"


class Marks:
    """Marks rows, and notes those that a broker refuses; insists on those that PostgreSQL does not let it.

    A call returns the shards of rows that are left. They belong to this object then, which insists on their
    rows in a task of its own, and gives each shard back when nothing of it is left.

    Arguments:
        release: called with shards that are given back.
        ended: called with the task that insists, when that has ended.
    """

    def __init__(
        self,
        counts: RelayCounts,
        refusals: PublishRefusals,
        stopping: asyncio.Event,
        faults: Faults,
        *,
        release: Callable[[set[int]], None],
        ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._counts = counts
        self._refusals = refusals
        self._stopping = stopping
        self._faults = faults
        self._release = release
        self._ended = ended
        #: Published, and not marked yet: by position, with the id. They are not published again, whichever
        #: session comes to mark them.
        self._unmarked: dict[int, str] = {}
        #: What this session insists on, by position: published rows, with the time of their reading, and
        #: refused ones, with the reason.
        self._left: dict[int, tuple[OutboxRow, float]] = {}
        self._refused: dict[int, tuple[OutboxRow, str]] = {}
        self._task: asyncio.Task[None] | None = None

    def is_published(self, row: OutboxRow) -> bool:
        """Whether this row was published, and could not be marked."""
        return self._unmarked.get(row.position) == row.id

    async def mark(self, session: RelaySession, rows: Sequence[OutboxRow], read: float) -> set[int]:
        """Mark published rows that were read at this time; returns the shards of those that are left.

        Raises DatabaseUnavailable.
        """
        if not rows:
            return set()
        self._remember(rows)
        left = await self._try(session, {row.position: (row, read) for row in rows})
        self._left |= left
        return self._insist_on(session, {row.shard for row, _ in left.values()})

    async def refuse(self, session: RelaySession, row: OutboxRow, why: str) -> set[int]:
        """Note why a broker has refused a row; returns its shard if that is left.

        Raises DatabaseUnavailable.
        """
        try:
            await self._note(session, row, why)
        except StatementRefused as error:
            self._refusals.tell(_MARKING, error)
            self._refused[row.position] = row, why
            return self._insist_on(session, {row.shard})
        return set()

    async def settle(self, within: float) -> None:
        """Let the task end by itself for so many seconds, then end it: another session marks what is left."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._left.clear()
        self._refused.clear()

    def _insist_on(self, session: RelaySession, shards: set[int]) -> set[int]:
        if not self._left and not self._refused:
            self._refusals.over(_MARKING)
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._insist(session))
            self._task.add_done_callback(self._ended)
        return shards

    async def _insist(self, session: RelaySession) -> None:
        try:
            while True:
                before = self._shards()
                await self._again(session)
                self._release(before - self._shards())
                if not self._left and not self._refused:
                    self._refusals.over(_MARKING)
                    return
                if self._stopping.is_set():
                    return  # the next relay marks them, or publishes them twice
                await self._refusals.pause(_MARKING)
        except DatabaseUnavailable:
            session.lost.set()  # the pump tells of it

    async def _again(self, session: RelaySession) -> None:
        wanted = dict(self._left)
        left = await self._try(session, wanted)
        for position in wanted.keys() - left.keys():
            del self._left[position]
        for position, (row, why) in list(self._refused.items()):
            try:
                await self._note(session, row, why)
            except StatementRefused as error:
                self._refusals.tell(_MARKING, error)
            else:
                del self._refused[position]

    async def _try(
        self, session: RelaySession, rows: dict[int, tuple[OutboxRow, float]]
    ) -> dict[int, tuple[OutboxRow, float]]:
        """Mark those of the rows that no session has locked; return the others."""
        if not rows:
            return {}
        left: set[int] = set()
        try:
            await session.published(list(rows))
        except StatementRefused as error:
            self._refusals.tell(_MARKING, error)
            left = await self._try_unlocked(session, list(rows))
        done = [entry for position, entry in rows.items() if position not in left]
        for row, _ in done:
            self._unmarked.pop(row.position, None)
        if done:
            await self._faults.reach("marked")
            self._counts.published([row for row, _ in done], time.monotonic() - min(read for _, read in done))
        return {position: entry for position, entry in rows.items() if position in left}

    async def _try_unlocked(self, session: RelaySession, positions: list[int]) -> set[int]:
        try:
            return await session.published_unlocked(positions)
        except StatementRefused as error:
            self._refusals.tell(_MARKING, error)
            return set(positions)

    async def _note(self, session: RelaySession, row: OutboxRow, why: str) -> None:
        await session.failed(row.position, why[:_KEPT])
        await self._faults.reach("refused")
        self._counts.refused(row)
        log.error(
            "outbox_row_refused",
            position=row.position,
            id=row.id,
            topic=row.topic,
            aggregate="/".join(row.aggregate),
            attempt=row.attempts + 1,
            error=why,
            action="its aggregate's later rows wait; fix the cause; `steadfaust outbox show` has the row",
        )

    def _remember(self, written: Sequence[OutboxRow]) -> None:
        self._unmarked.update((row.position, row.id) for row in written)
        while len(self._unmarked) > _REMEMBERED:  # others have marked them since, or publish them twice
            del self._unmarked[next(iter(self._unmarked))]

    def _shards(self) -> set[int]:
        rows = [row for row, _ in self._left.values()] + [row for row, _ in self._refused.values()]
        return {row.shard for row in rows}
