"""A steady load of orders beside a fault, and how long each lane stood still meanwhile."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from types import TracebackType
from typing import Self

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from schemas import latest
from streams.host.client import Producer
from streams.model.codecs import avro
from streams.model.layout import LANE
from tests import effort
from tests.scenarios.world import APP, LANES, World, order

RATE = 20
"""Orders a second: each lane then commits several times a second."""


class SteadyLoad:
    """Places orders for the length of a `with`; what was placed is `ids`.

    With `by_saga`, every other twenty orders have a saga each.
    """

    def __init__(self, world: World, run: str, rate: float = RATE, *, by_saga: bool = False) -> None:
        self.ids: list[str] = []
        self._kinds = (OrderPlaced, OrderSubmitted if by_saga else OrderPlaced)
        self._rate = rate
        self._world = world
        self._run = run
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._place, name=f"load {run}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _place(self) -> None:
        try:
            asyncio.run(self._produce())
        except BaseException as error:  # noqa: BLE001 - raised where the load ends
            self._failure = error

    async def _produce(self) -> None:
        world = self._world
        async with Producer(world.bootstrap, avro(latest, world.schemas), source="shop") as shop:
            began = time.monotonic()
            while not self._over.is_set():
                while len(self.ids) < (time.monotonic() - began) * self._rate:
                    placed, outcome = order(len(self.ids), self._run)
                    world.expected[placed.order_id] = (outcome, placed.total_cents)
                    kind = self._kinds[len(self.ids) // 20 % 2]  # outcomes have a period of 20
                    await shop.send(kind(order=placed), message_id=f"message-{placed.order_id}")
                    self.ids.append(placed.order_id)
                await asyncio.sleep(0.02)


def last_commits(world: World) -> Mapping[int, float]:
    """When each lane last committed, in seconds since the epoch; 0 for never."""
    times = _commits(world)
    return {lane: max(times[lane], default=0.0) for lane in range(LANES)}


def longest_stalls(world: World, since: float, until: float) -> Mapping[int, float]:
    """The longest time without a commit of each lane between two moments, in seconds."""
    times = _commits(world)
    return {
        lane: max(
            later - earlier
            for earlier, later in pairwise(
                [since, *sorted(at for at in times[lane] if since < at < until), until]
            )
        )
        for lane in range(LANES)
    }


def _commits(world: World) -> Mapping[int, set[float]]:
    """Every commit leaves positions in the lane's changelog, stamped when they were sent."""
    times: dict[int, set[float]] = defaultdict(set)
    for record in world.read(f"{APP}-{LANE}-changelog"):
        times[record.partition % LANES].add(record.timestamp / 1000)
    return times


def check_stalls(world: World, since: float, until: float, limit: float) -> None:
    """No lane stood still for longer than `limit` seconds: looked at in `make verify` alone."""
    if effort.is_all():
        stalls = longest_stalls(world, since, until)
        assert max(stalls.values()) <= limit, stalls
