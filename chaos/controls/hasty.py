"""The controls, and the one of them that the simulation runs, too."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from streams.engine.life.lane import Lane
from streams.engine.life.session import Session
from streams.engine.staging.changelog import Staged, writes_of
from streams.engine.staging.changes import POSITIONS
from streams.ports import Reader, Transactions


class HastyLane(Lane):
    """Writes rows, inbox and timers to its store before it commits them.

    Not the source positions: they would be ahead of the group's after a crash, which a lane that opens
    notices (PositionLost). So this is the mistake that nothing but the checker can see.
    """

    async def _open(self, producer: Transactions, reader: Reader) -> Session:
        session = await super()._open(producer, reader)
        staging, take = session.staging, session.staging.order.take

        def take_and_write(*limits: Any) -> Staged:
            staged = take(*limits)
            writes = writes_of(staged, staging.writes)
            staging.store.apply([write for write in writes if write[0] != POSITIONS], {})
            return staged

        staging.order.take = take_and_write  # type: ignore[assignment, method-assign]  # the mistake
        return session


#: Where a worker finds what it has to do without; empty: nothing.
CONTROL = "CHAOS_CONTROL"


class Control(StrEnum):
    """A protection that is taken away."""

    INBOX_OFF = "inbox_off"
    FENCING_OFF = "fencing_off"
    STORE_BEFORE_COMMIT = "store_before_commit"
    LETTERS_APART = "letters_apart"
    FORMER_PRIMARY_KEPT = "former_primary_kept"
    REFUSALS_END = "refusals_end"
    LOGS_WAIT = "logs_wait"
