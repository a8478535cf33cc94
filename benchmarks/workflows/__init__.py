"""The order's saga beside the same order conducted by workflow engines: DBOS, and Temporal's server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from benchmarks.orders import CUTS
from benchmarks.sections import Context, ReportTable, Section
from benchmarks.workflows.contest import (
    FEW_PER_SECOND,
    PER_SECOND,
    Contender,
    amounts,
    judged,
    quantiles,
    steady_rate,
)
from benchmarks.workflows.engines import Dbos, Temporal
from benchmarks.workflows.ours import saga
from benchmarks.workflows.peers import conducted_by
from demo.purchases import Purchase, purchases
from streams.errors import SteadfaustError

_QUANTILES = ("p50", "p99")
_ALIKE = (
    "Every contender has two workers and the same orders, those of the demo: stock is reserved, the card is"
    " charged by the sandbox gateway over HTTP, the shipment is scheduled, and what was done is undone where"
    " one of these is refused. One contender runs at a time, everything of it anew in each run; after a"
    " smaller burst to warm up come a burst, all submitted at once (8,000 orders, of the engines 1,500), and"
    " a steady rate. Then the ends of orders, money and stock are held against what the orders call for, as"
    " the demo does. Ratios are the medians of those of bursts of the same run."
)
_PARTICIPANTS = (
    "Of the engines each step is one function of PostgreSQL, which can be repeated, or a request to the"
    " gateway. Of the saga the services are handlers with rows of their own. Its time ends when a reader of"
    " committed records has the order's end, the engines' just before its row is committed. Processor time is"
    " counted until the last workflow, or message, is done; the sender's and the gateway's is left out."
)
_DISK = (
    "PostgreSQL has every commit on the disk before it answers. Kafka, with its one broker, and the file of"
    " SQLite have it in the system's memory, which outlives the process but not the machine."
)
_DBOS = (
    "DBOS: its queue is looked at every 100 ms in place of each second, and a worker has 100 orders in hand;"
    " steps are plain functions in threads. A burst is put into the queue 100 orders to a transaction."
)
_TEMPORAL = (
    "Temporal: its development server, which keeps histories in one SQLite file by one connection, is not"
    " meant for production; a server over PostgreSQL or Cassandra was not measured. Workers run without the"
    " sandbox, with as many pollers as the server asks for, and start activities eagerly; stock and shipping"
    " are in PostgreSQL."
)
_NOTES = (_ALIKE, _PARTICIPANTS, _DISK, _DBOS, _TEMPORAL)


def measure(context: Context) -> Section:
    """Round after round, each contender in its turn."""
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    contenders = [*(saga(cut) for cut in CUTS), conducted_by(Dbos()), conducted_by(Temporal())]
    for run in range(context.runs):
        for each in contenders:
            if not each.failed:
                take(context, each, run)
    return section(contenders)


def take(context: Context, contender: Contender, run: int) -> None:
    """Measure one once. What fails is remembered. Raises NotMeasured when it is the project's own."""
    context.say(f"{contender.title}:")
    try:
        asyncio.run(_measure(context, contender, run))
    except SteadfaustError as error:
        if contender.ours:
            raise
        contender.failed = str(error)
        context.say(f"  not measured: {error}")


async def _measure(context: Context, contender: Contender, run: int) -> None:
    given = amounts(contender, quick=context.quick)
    warm, burst = given.warm, given.burst
    bought = iter(purchases(warm + burst + int(PER_SECOND + FEW_PER_SECOND) * given.seconds))
    submitted: list[Purchase] = []

    def some(orders: float) -> list[Purchase]:
        taken = list(islice(bought, int(orders)))
        submitted.extend(taken)
        return taken

    async with contender.start(context, context.var / f"{contender.name}-{run}") as conducted:
        await conducted.burst(some(warm))
        contender.bursts.append(await conducted.burst(some(burst)))
        context.say(f"  {contender.bursts[-1].says()}")
        contender.per_second = contender.per_second or steady_rate(contender.rate)
        for rate, into in ((FEW_PER_SECOND, contender.of_few), (contender.per_second, contender.latencies)):
            into.append(await conducted.latency(some(rate * given.seconds), rate))
            context.say(f"  {quantiles(into[-1:])} ms at {rate:g} orders/s")
        await judged(conducted, submitted)


def section(contenders: Sequence[Contender]) -> Section:
    """What was found, those that failed among it."""
    first = contenders[0]
    tables = [
        ReportTable(
            "A burst of orders, two workers",
            (
                "",
                "orders/s",
                "this / the first",
                "CPU ms of the workers, each order",
                "of the servers",
            ),
            [_burst_row(each, first) for each in contenders],
        ),
        ReportTable(
            "From submitted to settled at a steady rate, in ms",
            ("", *(f"{name} at {FEW_PER_SECOND:g}/s" for name in _QUANTILES), "at orders/s", *_QUANTILES),
            [_latency_row(each) for each in contenders],
        ),
    ]
    notes = [*_NOTES, *_slower(contenders)]
    notes += [f"Not measured: {each.title}: {each.failed}." for each in contenders if each.failed]
    return Section("Beside workflow engines", tables, notes)


def _burst_row(each: Contender, first: Contender) -> list[str]:
    if not each.measured or each.failed:
        return [each.title, "-", "-", "-", "-"]
    servers = ", ".join(f"{ms:.2f} {name}" for name, ms in each.servers.items())
    return [each.title, f"{each.rate:,.0f}", f"{each.ratio(first):.2f}", f"{each.workers:.2f}", servers]


def _latency_row(each: Contender) -> list[str]:
    if not each.measured or each.failed:
        return [each.title, "-", "-", "-", "-", "-"]
    few, many = (
        [f"{quantiles(runs)[name]:,.0f}" for name in _QUANTILES] for runs in (each.of_few, each.latencies)
    )
    return [each.title, *few, f"{each.per_second:g}", *many]


def _slower(contenders: Sequence[Contender]) -> list[str]:
    slow = [each.title for each in contenders if 0 < each.per_second < PER_SECOND]
    if not slow:
        return []
    says = f"These would fall behind at {PER_SECOND:g} orders/s here, so theirs is the latency at fewer:"
    return [f"{says} {'; '.join(slow)}."]
