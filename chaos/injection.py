"""Faults in their turn: a scene begins when nothing of the one before is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from chaos.faults.ground import Ground
from chaos.faults.perform import perform
from chaos.rig.fleet import worker_name
from chaos.rig.kinds import Planned
from chaos.rig.records import Happened
from streams.errors import SteadfaustError

Say = Callable[[str], None]
Perform = Callable[[Planned, Ground], Awaitable[Happened]]


class Injection:
    """Performs what is planned. The first fault that is not confirmed, or does not heal, is the last.

    Attributes:
        happened: every fault that began, in the order in which they healed; unconfirmed ones say so.
        problems: why there were no more faults; empty when all is well.
        left_out: how many faults were planned for which the load did not last, on a slow machine.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        ground: Ground,
        say: Say,
        *,
        lasts: Callable[[], bool],
        perform: Perform = perform,
    ) -> None:
        """`lasts` tells whether there is load for another scene."""
        self.left_out = 0
        self._lasts = lasts
        self.happened: list[Happened] = []
        self.problems: list[str] = []
        self._planned = planned
        self._ground = ground
        self._say = say
        self._perform = perform
        self._began = time.time()

    @property
    def elapsed(self) -> float:
        """Seconds since it was made, which is when the load begins."""
        return time.time() - self._began

    async def run(self) -> None:
        """All of them; returns when the last has healed, or with `problems`."""
        under_way: list[asyncio.Task[None]] = []
        late = 0.0  # how long the scene had to wait for the one before
        try:
            for number, planned in enumerate(self._planned):
                if not planned.beside:
                    await self._healed(under_way)
                    under_way.clear()
                    if self.problems:
                        return
                    if not self._lasts():
                        self.left_out = len(self._planned) - number
                        return
                    await self._until(max(planned.at, self.elapsed + planned.calm))
                    late = self.elapsed - planned.at
                else:
                    await self._until(planned.at + late)
                under_way.append(asyncio.create_task(self._inject(planned)))
            await self._healed(under_way)
        except SteadfaustError as error:
            self.problems.append(f"after {self.elapsed:.0f} s: {error}")
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _healed(self, under_way: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.gather(*under_way)
        if not self.problems:
            await self._ground.calm()

    async def _inject(self, planned: Planned) -> None:
        began = time.time()
        try:
            done = await self._perform(planned, self._ground)
            confirmed = done.confirmed
        except SteadfaustError as error:
            self.problems.append(f"{planned.kind} at {began - self._began:.0f} s: {error}")
            done = Happened(kind=planned.kind, target=_target(planned), began=began, ended=None, confirmed="")
            confirmed = f"NOT CONFIRMED: {error}"
        self.happened.append(done)
        self._say(f"{self.elapsed:5.0f} s  {done.kind} {done.target}: {confirmed}")

    async def _until(self, elapsed: float) -> None:
        await asyncio.sleep(max(0.0, elapsed - self.elapsed))


def _target(planned: Planned) -> str:
    if planned.slot is not None:
        return worker_name(planned.slot)
    return f"broker {planned.broker}" if planned.broker is not None else "all"
