"""The order as a workflow of Temporal: `worker` conducts orders, `send FILE RATE` begins their workflows."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import aiohttp
import asyncpg
import uvloop
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorAutoscaling, UnsandboxedWorkflowRunner, Worker

from benchmarks.peers.shop import (
    CONFIRMED,
    OUT_OF_STOCK,
    READY,
    UNSUPPORTED_DESTINATION,
    PeerShop,
    Task,
    charge_of,
    refund_of,
    say_began,
    shop_from_environment,
    task_from_arguments,
)

QUEUE = "orders"
CONNECTIONS = 16
#: Workflows that a sender begins at once, at most.
AT_ONCE = 100
CONNECTED_WITHIN = 60.0
#: As long as a step of the project's saga may take.
WITHIN = timedelta(seconds=30)


class Participants:
    """The activities, over one pool and one session."""

    def __init__(self, pool: asyncpg.Pool[Any], session: aiohttp.ClientSession) -> None:
        self._pool = pool
        self._session = session

    async def _ask(self, function: str, *values: Any) -> Any:
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        return await self._pool.fetchval(f"SELECT {function}({places})", *values)

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(path, json=body, raise_for_status=True) as answer:
            done: dict[str, Any] = await answer.json()
            return done

    @activity.defn
    async def reserve(self, order: dict[str, Any]) -> bool:
        """Set aside every piece, or none."""
        return bool(await self._ask("reserve", order["order_id"], order["skus"], order["units"]))

    @activity.defn
    async def release(self, order: dict[str, Any]) -> None:
        """Give back what is set aside."""
        await self._ask("let_go", order["order_id"], "released")

    @activity.defn
    async def charge(self, order: dict[str, Any]) -> str:
        """Charge the card; why it was declined, if it was."""
        if not order["cents"]:
            return ""
        return str((await self._post("/charges", charge_of(order)))["reason"])

    @activity.defn
    async def refund(self, order: dict[str, Any]) -> None:
        """Give the money back."""
        if order["cents"]:
            await self._post("/refunds", refund_of(order))

    @activity.defn
    async def schedule(self, order: dict[str, Any]) -> bool:
        """Schedule the shipment, if we ship to where it goes."""
        return bool(await self._ask("schedule", order["order_id"], order["country"]))

    @activity.defn
    async def settle(self, order: dict[str, Any], outcome: str) -> None:
        """The order has come to its end."""
        await self._ask("settle", order["order_id"], outcome)

    def all(self) -> list[Any]:
        """As a worker is given them."""
        return [self.reserve, self.release, self.charge, self.refund, self.schedule, self.settle]


async def step(activity_method: Any, *values: Any) -> Any:
    """Have an activity done."""
    return await workflow.execute_activity_method(
        activity_method, args=list(values), start_to_close_timeout=WITHIN
    )


@workflow.defn(name="conduct")
class Conduct:
    """The order's way, and back."""

    @workflow.run
    async def run(self, order: dict[str, Any]) -> str:
        """From submitted to settled."""
        outcome = CONFIRMED
        if not await step(Participants.reserve, order):
            outcome = OUT_OF_STOCK
        elif declined := await step(Participants.charge, order):
            await step(Participants.release, order)
            outcome = declined
        elif not await step(Participants.schedule, order):
            await step(Participants.refund, order)
            await step(Participants.release, order)
            outcome = UNSUPPORTED_DESTINATION
        await step(Participants.settle, order, outcome)
        return outcome


async def connected(shop: PeerShop) -> Client:
    """A client, once the server answers."""
    deadline = time.monotonic() + CONNECTED_WITHIN
    while True:
        try:
            return await Client.connect(shop.engine)
        except (RPCError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def work(shop: PeerShop) -> None:
    """Conduct orders until the process gets SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    client = await connected(shop)
    async with (
        asyncpg.create_pool(shop.postgres, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool,
        aiohttp.ClientSession(shop.gateway) as session,
        Worker(
            client,
            task_queue=QUEUE,
            workflows=[Conduct],
            activities=Participants(pool, session).all(),
            identity=shop.worker,
            max_cached_workflows=10_000,
            max_concurrent_activities=shop.in_hand,
            workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
            activity_task_poller_behavior=PollerBehaviorAutoscaling(),
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        print(READY, flush=True)
        await ended.wait()


async def send(shop: PeerShop, task: Task) -> None:
    """Begin all workflows."""
    client = await connected(shop)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(order: dict[str, Any]) -> None:
        try:
            await client.start_workflow("conduct", order, id=order["order_id"], task_queue=QUEUE)
        finally:
            room.release()

    began = say_began()
    async with asyncio.TaskGroup() as tasks:
        for number, each in enumerate(task.orders):
            await asyncio.sleep(max(0.0, task.due(began, number) - time.time()))
            await room.acquire()
            tasks.create_task(one(each))


if __name__ == "__main__":
    shop = shop_from_environment()
    uvloop.run(work(shop) if sys.argv[1] == "worker" else send(shop, task_from_arguments()))
