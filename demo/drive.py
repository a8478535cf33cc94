"""The middle of a run: the workers' lanes open, stock comes in, orders are placed until all are settled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agents.settings import OrderSettings, Way
from demo.edge import DemoEdge, OrdersClient
from demo.evidence import settlements
from demo.ground import DemoFailed
from demo.load import DemoPace, place_orders, receive_stock
from demo.progress import OrderCounts, View, watch
from demo.purchases import Purchase, orchestrated, purchases
from demo.workers import Workers
from streams.local import Stack
from streams.local.busy_timeout import BusyTimeout
from streams.postgres.outbox_owner import RelayKind
from streams.s3 import claim_checks

_LANES_OPEN_WITHIN = 90.0  # as `BusyTimeout` counts
_STALLED_AFTER = 60.0
_LOOK_EVERY = 0.1
#: So many orders are placed before the rate counts, or a tenth of all: code is loaded and compiled meanwhile.
_WARM_UP = 100
_PACE = DemoPace()

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoPlan:
    """The parameters of a run. After `kill_after` settled orders a worker is killed; `restart` starts it
    again. `attached` is the share of orders that come with files, `relay` brings the outbox to Kafka. `keep`
    leaves everything up after the report, or after an error, until it is interrupted.
    """

    orders: int
    var: Path
    workers: int = 2
    choreography: Way = Way.STOCK_FIRST
    kill_after: int | None = None
    restart: bool = False
    attached: float = 0.0
    relay: RelayKind = RelayKind.POLL
    keep: bool = False


class Drive:
    """Drives the orders of a plan through the workers, and watches over both."""

    def __init__(self, plan: DemoPlan, stack: Stack, workers: Workers, edge: DemoEdge, say: Say) -> None:
        self.plan = plan
        self.tally = OrderCounts(plan.orders)
        self.killed: list[int] = []
        self.died = 0
        self._stack = stack
        self._workers = workers
        self._edge = edge
        self._say = say
        self._room = 0
        self._has_room = asyncio.Event()

    async def run(self, console: Console) -> None:
        """Until every order is settled. Raises DemoFailed, or StackError when the stack goes down."""
        app_id = OrderSettings(var=self.plan.var).app_id
        for number in range(1, self.plan.workers + 1):
            self._workers.start(number)
        await self._lanes_open()
        self.tally.resume(await settlements(self._stack.bootstrap))
        self.tally.warm_up = min(_WARM_UP, max(0, self.plan.orders - self.tally.earlier) // 10)
        await receive_stock(self._stack.bootstrap, app_id)
        self._say("the stock is on the shelves; placing orders")
        with View(self.tally, console) as view:
            await self._settle(view)

    async def _lanes_open(self) -> None:
        patience = BusyTimeout("lanes to open", _LANES_OPEN_WITHIN, self._starting, self._say)
        while not (lanes := self._workers.lanes_open()):
            if self._workers.report_deaths():
                raise DemoFailed(f"a worker did not start: see {self._workers.logs}")
            if patience.over():
                raise DemoFailed(f"not all lanes opened within {patience}: see {self._workers.logs}")
            await asyncio.sleep(_LOOK_EVERY)
        pids = ", ".join(str(worker.process.pid) for worker in self._workers.alive)
        self._say(f"{len(lanes)} lanes are open, on workers {pids}")

    def _starting(self) -> list[int]:
        brokers = [broker.pid for broker in self._stack.state.brokers]
        return [*brokers, *(worker.process.pid for worker in self._workers.alive)]

    async def _settle(self, view: View) -> None:
        bootstrap = self._stack.bootstrap
        placing = asyncio.create_task(self._place())
        watching = asyncio.create_task(watch(bootstrap, self.tally))
        try:
            while not self.tally.done:
                await asyncio.wait({watching}, timeout=_LOOK_EVERY)
                for task in (placing, watching):
                    if task.done():
                        task.result()  # an error of either ends the demo
                self._make_room()
                self._kill_when_due()
                self._watch_over()
                self._show(view)
            await placing
            self._show(view, last=True)
        finally:
            for task in (placing, watching):
                task.cancel()
            await asyncio.gather(placing, watching, return_exceptions=True)

    async def _place(self) -> None:
        async with (
            claim_checks(OrderSettings(var=self.plan.var)) as claims,
            OrdersClient(self._edge.urls) as over_http,
        ):
            await place_orders(
                self._stack.bootstrap,
                purchases(self.plan.orders),
                self._placed,
                claims=claims,
                attached=self.plan.attached,
                trouble=True,
                submitted=orchestrated,
                room=self._has_room.wait,
                over_http=over_http,
            )

    def _placed(self, purchase: Purchase) -> None:
        self.tally.place(purchase.order_id)
        self._room -= 1
        if self._room <= 0:
            self._has_room.clear()

    def _make_room(self) -> None:
        self._room = _PACE.room(self.tally.seen(_PACE.seconds))
        if self._room > 0:
            self._has_room.set()
        else:
            self._has_room.clear()

    def _show(self, view: View, *, last: bool = False) -> None:
        view.update([worker.process.pid for worker in self._workers.alive], last=last)

    def _kill_when_due(self) -> None:
        after = self.plan.kill_after
        if after is None or self.killed or self.tally.settled < after:
            return
        victim = self._workers.running[1]
        self.killed.append(victim.process.pid)
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        self._say(f"worker 1 (pid {victim.process.pid}) was killed at {self.tally.settled:,} settled orders")
        if self.plan.restart:
            self._say(f"worker 1 is started again as pid {self._workers.start(1).process.pid}")

    def _watch_over(self) -> None:
        """Others take over what a worker leaves; without a worker, or without progress, it is over."""
        self.died += self._workers.report_deaths()
        _ = self._stack.state  # raises when the stack has gone down
        left = f"{self.tally.orders - self.tally.settled:,} orders are not settled"
        if not self._workers.alive:
            raise DemoFailed(f"no worker is left and {left}: see {self._workers.logs}")
        if self.tally.idle() > _STALLED_AFTER:
            raise DemoFailed(f"nothing moved for {_STALLED_AFTER:.0f} s and {left}: see {self._workers.logs}")
