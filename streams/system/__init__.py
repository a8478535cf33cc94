"""Adapters of production for the ports that need no Kafka: the machine's clock, and no faults."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class NoFaults:
    """Nothing happens at the labelled points."""

    async def reach(self, point: str) -> None:
        """Do nothing."""
