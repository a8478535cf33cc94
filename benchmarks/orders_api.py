"""Orders over HTTP with everything running beside it: PostgreSQL, a relay, the broker, two workers, the
gateway, and the projection back into PostgreSQL.

`python -m benchmarks.http_orders` measures the API alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from agents.messages import OrderPlaced
from benchmarks.latency import Latency, Schedule, latency_of, percentile
from benchmarks.orders import CUTS, Cut, OrderGround, milliseconds, order_ground
from benchmarks.sections import Context, NotMeasured, ReportTable, Section
from demo.edge import DemoEdge
from demo.orders_client import OrdersClient
from demo.purchases import Purchase, order, purchases
from demo.workers import environment
from streams.postgres.database import connect

SECTION = "orders_api"

#: Requests under way at once.
_AT_ONCE = 64
_PER_SECOND = 100
_PROJECTED_WITHIN = 120.0
_PAUSE = 0.05
_ENDED = "SELECT count(*) FROM orders WHERE status <> 'pending'"
_NOTE = (
    f"{_AT_ONCE} requests are under way at once. An order is accepted when it, the answer to its key and its"
    " message are on the disk. It is projected when PostgreSQL has its end. The latency begins when an order"
    " was due by the schedule, and ends when a reader of Kafka has its confirmation. The client, PostgreSQL,"
    " relay, broker, gateway, two APIs and two workers share the machine's cores."
)


@dataclass(frozen=True, slots=True)
class ApiBurst:
    """Orders a second that were accepted, settled and projected, and the p99 of an answer in ms."""

    accepted: float
    settled: float
    projected: float
    p99: float


@dataclass
class ApiResult:
    """What was found with one cut."""

    cut: Cut
    bursts: list[ApiBurst] = field(default_factory=list)
    latency: Latency | None = None


def measure(context: Context) -> Section:
    """With each cut: bursts first, then latency at a steady rate."""
    return _section([_with_cut(context, cut) for cut in CUTS])


def _with_cut(context: Context, cut: Cut) -> ApiResult:
    context.say(f"{cut.title}:")
    found = ApiResult(cut)
    with order_ground(context, cut, databases=True) as ground:
        given = environment(
            ground.var, STEADFAUST_PARTITIONS=str(cut.partitions), STEADFAUST_LANES=str(cut.lanes)
        )
        with DemoEdge(ground.var, given, context.say) as edge:
            asyncio.run(_measure(context, ground, edge, found))
    return found


async def _measure(context: Context, ground: OrderGround, edge: DemoEdge, found: ApiResult) -> None:
    burst, seconds = (1000, 5) if context.quick else (6000, 30)
    bought = purchases(context.runs * burst + _PER_SECOND * seconds)
    async with ground, OrdersClient(edge.urls) as client:
        for run in range(context.runs):
            found.bursts.append(await _burst(ground, client, bought[: (run + 1) * burst], burst))
            context.say(f"  {found.bursts[-1].accepted:,.0f} orders/s accepted")
        found.latency = await _steady(ground, client, bought[context.runs * burst :])


async def _burst(
    ground: OrderGround, client: OrdersClient, so_far: Sequence[Purchase], orders: int
) -> ApiBurst:
    waiting, took = iter(so_far[-orders:]), []
    began = time.monotonic()

    async def caller() -> None:
        for each in waiting:
            started = time.monotonic()
            await client.place(OrderPlaced(order=order(each)))
            took.append(time.monotonic() - started)

    await asyncio.gather(*(caller() for _ in range(_AT_ONCE)))
    accepted = time.monotonic()
    settled = await ground.settled([each.order_id for each in so_far])
    await _projected(ground, len(so_far))
    projected = time.monotonic()
    rates = [orders / (ended - began) for ended in (accepted, settled, projected)]
    return ApiBurst(rates[0], rates[1], rates[2], percentile(sorted(took), 0.99) * 1000)


async def _projected(ground: OrderGround, orders: int) -> None:
    """Wait until PostgreSQL has the end of so many. Raises NotMeasured."""
    connection = await connect(ground.postgres)
    deadline = time.monotonic() + _PROJECTED_WITHIN
    try:
        while (there := await connection.fetchval(_ENDED)) < orders:
            if time.monotonic() > deadline:
                raise NotMeasured(f"PostgreSQL has the end of {there} of {orders} orders")
            await asyncio.sleep(_PAUSE)
    finally:
        await connection.close()


async def _steady(ground: OrderGround, client: OrdersClient, bought: Sequence[Purchase]) -> Latency:
    due: dict[str, float] = {}
    schedule = Schedule(time.monotonic() + _PAUSE, _PER_SECOND)
    async with asyncio.TaskGroup() as requests:
        async for number, moment in schedule.moments(len(bought)):
            due[bought[number].order_id] = moment
            requests.create_task(client.place(OrderPlaced(order=order(bought[number]))))
    await ground.settled(due)
    return latency_of(due, ground.confirmed)


def _section(found: Sequence[ApiResult]) -> Section:
    names = ("accepted", "settled", "projected", "p99")
    bursts = [
        (each.cut, {name: median(getattr(burst, name) for burst in each.bursts) for name in names})
        for each in found
    ]
    steady = [(each.cut, milliseconds(each.latency)) for each in found if each.latency is not None]
    numbers = [
        {"lanes": cut.lanes, "burst": burst, "latency_ms": latency}
        for (cut, burst), (_, latency) in zip(bursts, steady, strict=True)
    ]
    return Section(
        "Orders over HTTP",
        [
            ReportTable(
                "A burst through the whole choreography, everything on this machine, orders/s",
                ("", *names[:3], "p99 of an answer, ms"),
                [[cut.title, *(f"{burst[name]:,.0f}" for name in names)] for cut, burst in bursts],
            ),
            ReportTable(
                f"From a request to the confirmation at {_PER_SECOND} orders/s, in ms",
                ("", *steady[0][1]),
                [[cut.title, *(f"{value:,.0f}" for value in ms.values())] for cut, ms in steady],
            ),
        ],
        {SECTION: numbers},
        [_NOTE],
    )
