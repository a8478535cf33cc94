"""A negative control that runs on real brokers and in the simulation."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from streams.lane.lane import Lane
from streams.lane.parts import Parts
from streams.ports import Transactions
from streams.staging.changelog import Staged, writes_of
from streams.staging.changes import POSITIONS


class HastyLane(Lane):
    """Writes rows, inbox and timers to its store before it commits them.

    Not the source positions: they would be ahead of the group's after a crash, which a lane that opens
    notices (PositionLost). So this is the mistake that nothing but the checker can see.
    """

    async def _commit(self, parts: Parts, producer: Transactions) -> None:
        order = parts.staging.order
        take = order.take

        def take_and_write(*limits: Any) -> Staged:
            staged = take(*limits)
            assert self.store is not None
            writes = writes_of(staged, self._writes)
            self.store.apply([write for write in writes if write.table != POSITIONS], {})
            return staged

        with patch.object(order, "take", take_and_write):
            await super()._commit(parts, producer)
