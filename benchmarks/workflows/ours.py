"""The project's own saga: two workers of the demo's application over Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agents.commands import OrderSubmitted
from benchmarks.latency import Latency
from benchmarks.orders import Cut, OrderGround, Pace, order_ground
from benchmarks.sections import Context, NotMeasured
from benchmarks.workflows.contest import Conducted, Contender, SubmittedOrders
from demo.evidence import DemoEvidence, gather, quiet
from demo.purchases import Purchase

_QUIET_WITHIN = 30.0


class SagaOrders:
    """Orders that the saga conducts; see `Conducted`."""

    def __init__(self, ground: OrderGround) -> None:
        self._ground = ground

    async def burst(self, bought: Sequence[Purchase]) -> SubmittedOrders:
        """As the protocol says."""
        workers, broker = self._ground.cpu_seconds()
        pace = Pace()
        await self._ground.burst(bought, OrderSubmitted, pace)
        await self._quiet()
        workers_after, broker_after = self._ground.cpu_seconds()
        seconds = len(bought) / pace.rate
        return SubmittedOrders(
            len(bought), seconds, workers_after - workers, {"Kafka": broker_after - broker}
        )

    async def latency(self, bought: Sequence[Purchase], per_second: float) -> Latency:
        """As the protocol says."""
        return await self._ground.latency(bought, OrderSubmitted, per_second)

    async def evidence(self) -> DemoEvidence:
        """As the protocol says."""
        settings = self._ground.settings
        url = settings.gateway()
        return await gather(settings.brokers(), url, settings.app_id, within=_QUIET_WITHIN)

    async def _quiet(self) -> None:
        """Wait until the stock of the last orders has left. Raises NotMeasured."""
        settings = self._ground.settings
        if left := await quiet(settings.brokers(), settings.app_id, within=_QUIET_WITHIN):
            raise NotMeasured(f"messages are left: {left}")


def saga(cut: Cut) -> Contender:
    """The saga with this cut."""

    @asynccontextmanager
    async def start(context: Context, home: Path) -> AsyncIterator[Conducted]:
        with order_ground(replace(context, var=home), cut) as ground:
            async with ground:
                yield SagaOrders(ground)

    name = f"saga_{cut.partitions}_{cut.lanes}"
    return Contender(name, f"this project's saga, {cut.title}", start, ours=True)
