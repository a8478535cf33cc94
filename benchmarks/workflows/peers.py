"""Orders that an engine conducts: two workers of it, and the participants in PostgreSQL and the gateway."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.latency import Latency, latency_of
from benchmarks.peers.shop import CONFIRMED, PeerShop
from benchmarks.sections import Context, NotMeasured
from benchmarks.workflows.contest import Conducted, Contender, SubmittedOrders, cpu_of
from benchmarks.workflows.engines import Engine, Serving, engines_python
from benchmarks.workflows.process import FOUND_IN_PROJECT, PeerProcess, sending
from benchmarks.workflows.shop import as_json, look, open_shop
from demo.evidence import DemoEvidence, ledger_of
from demo.purchases import Purchase
from demo.workers import PROJECT
from streams.local import Stack, declared, local_stack
from streams.postgres import Connection
from streams.postgres.database import connect

_DATABASE = "flows"
_WORKERS = 2
#: Orders that each worker has in hand at most.
IN_HAND = 100
SETTLED_WITHIN = 300.0
_ENDED_WITHIN = 30.0
_LOOK_EVERY = 0.2
_LIST = "SELECT order_id, outcome, at FROM settled WHERE order_id = ANY ($1)"


class EngineOrders:
    """Orders that an engine conducts; see `Conducted`."""

    def __init__(self, home: Path, engine: Engine, server: Serving, shop: PeerShop, python: Path) -> None:
        self._home = home
        self._engine = engine
        self._server = server
        self._shop = shop
        self._python = python
        self._submitted: list[Purchase] = []
        self.workers: list[PeerProcess] = []
        self.postgres = 0

    async def open(self, stack: Stack, started: AsyncExitStack) -> None:
        """Make the shop and start the workers. Raises NotMeasured."""
        self.postgres = stack.state.processes["postgres"].pid
        self.connection: Connection = await connect(self._shop.postgres)
        started.push_async_callback(self.connection.close)
        await open_shop(self.connection)
        for number in range(_WORKERS):
            name = f"worker-{number}"
            given = FOUND_IN_PROJECT | replace(self._shop, worker=name).environment()
            process = PeerProcess(self._program("worker"), given, self._home / "log" / f"{name}.log")
            self.workers.append(started.enter_context(process))
            await process.ready()

    async def burst(self, bought: Sequence[Purchase]) -> SubmittedOrders:
        """As the protocol says."""
        workers, servers = self._cpu()
        async with self._sending(bought, 0) as began:
            rows = await self._settled(bought)
        await self._ended()
        workers_after, servers_after = self._cpu()
        return SubmittedOrders(
            len(bought),
            max(at for _, at in rows.values()) - began,
            workers_after - workers,
            {name: servers_after[name] - cpu for name, cpu in servers.items()},
        )

    async def latency(self, bought: Sequence[Purchase], per_second: float) -> Latency:
        """As the protocol says."""
        async with self._sending(bought, per_second) as began:
            rows = await self._settled(bought)
        due = {each.order_id: began + number / per_second for number, each in enumerate(bought)}
        return latency_of(due, {name: at for name, (how, at) in rows.items() if how == CONFIRMED})

    async def evidence(self) -> DemoEvidence:
        """As the protocol says."""
        await self._ended()
        evidence = await look(self.connection, self._submitted)
        evidence.ledger = await ledger_of(self._shop.gateway)
        return evidence

    @asynccontextmanager
    async def _sending(self, bought: Sequence[Purchase], per_second: float) -> AsyncIterator[float]:
        task = self._home / f"orders-{len(self._submitted)}.json"
        task.write_text(as_json(bought))
        self._submitted += bought
        given = os.environ | FOUND_IN_PROJECT | self._shop.environment()
        command = self._program("send", str(task), str(per_second))
        async with sending(command, given, self._home / "log" / "sender.log") as began:
            yield began

    async def _settled(self, bought: Sequence[Purchase]) -> dict[str, tuple[str, float]]:
        """Wait for the end of each; returns what it was, and when. Raises NotMeasured."""
        before = len(self._submitted) - len(bought)
        began = time.monotonic()
        while (there := await self.connection.fetchval("SELECT count(*) FROM settled")) < len(
            self._submitted
        ):
            for worker in self.workers:
                worker.must_run("all orders were settled")
            if time.monotonic() - began > SETTLED_WITHIN:
                raise NotMeasured(
                    f"{there - before:,} of {len(bought):,} orders were settled within {SETTLED_WITHIN:g} s:"
                    f" see {self._home / 'log'}"
                )
            await asyncio.sleep(_LOOK_EVERY)
        rows = await self.connection.fetch(_LIST, [each.order_id for each in bought])
        return {row["order_id"]: (row["outcome"], row["at"]) for row in rows}

    async def _ended(self) -> None:
        """Wait for the end of the workflows, which comes after that of their orders. Raises NotMeasured."""
        deadline = time.monotonic() + _ENDED_WITHIN
        while left := await self._engine.left(self.connection, self._server):
            if time.monotonic() > deadline:
                raise NotMeasured(f"{left} workflows have not ended though their orders are settled")
            await asyncio.sleep(_LOOK_EVERY)

    def _program(self, *words: str) -> list[str]:
        return [str(self._python), "-m", self._engine.module, *words]

    def _cpu(self) -> tuple[float, dict[str, float]]:
        pids = {"PostgreSQL": self.postgres, **self._server.pids}
        return sum(each.cpu_seconds for each in self.workers), {
            name: cpu_of([pid]) for name, pid in pids.items()
        }


def conducted_by(engine: Engine) -> Contender:
    """An engine with two workers."""

    @asynccontextmanager
    async def start(context: Context, home: Path) -> AsyncIterator[Conducted]:
        python = engines_python(context.say)
        (home / "log").mkdir(parents=True)
        async with AsyncExitStack() as started:
            stack = await started.enter_async_context(_stack(home, context.say))
            server = await started.enter_async_context(engine.serving(home, context.say))
            shop = PeerShop(stack.url("postgres"), stack.url("gateway"), server.address, "", IN_HAND)
            orders = EngineOrders(home, engine, server, shop, python)
            await orders.open(stack, started)
            yield orders

    return Contender(engine.name, engine.title, start)


def _stack(home: Path, say: Callable[[str], None]) -> local_stack:
    """PostgreSQL and the payment gateway, without Kafka."""
    processes = declared(PROJECT / "pyproject.toml")
    return local_stack(home, brokers=0, processes=processes, databases=[_DATABASE], say=say)
