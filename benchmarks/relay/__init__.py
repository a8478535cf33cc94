"""What the relay does: rows a second out of a full outbox, and how soon after a commit a message is on Kafka.

One polling relay, a process of its own as `steadfaust outbox relay` starts it, on one PostgreSQL and one
broker; and Debezium in Kafka Connect in its place, on the same. Rates are those of the topic's growth.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from statistics import median

from benchmarks.latency import Latency
from benchmarks.relay.bursts import LARGE, Burst, captured, large, polled, polled_among_many
from benchmarks.relay.ground import prepare
from benchmarks.relay.steady import RATE, steady
from benchmarks.sections import Context, ReportTable, Section
from streams.local import Stack, local_stack

_MANY = 10_000_000


@dataclass
class _Found:
    """What the runs have found, by the row of the tables."""

    bursts: dict[str, list[Burst]] = field(default_factory=dict)
    latencies: dict[str, list[Latency]] = field(default_factory=dict)

    def burst(self, name: str, burst: Burst) -> str:
        self.bursts.setdefault(name, []).append(burst)
        return f"{name}: {burst.rate:,.0f} rows/s, {burst.megabytes:.0f} MB"

    def latency(self, name: str, latency: Latency) -> str:
        self.latencies.setdefault(name, []).append(latency)
        return f"{name}: p50 {latency.p50 * 1000:.1f} ms, p99 {latency.p99 * 1000:.1f} ms at {RATE:g} rows/s"


def measure(context: Context) -> Section:
    """Both relays in turns; a large outbox and large payloads in the last run alone."""
    found = _Found()
    rows, messages = (40_000, int(RATE * 5)) if context.quick else (200_000, int(RATE * 30))
    many = _MANY // 5 if context.quick else _MANY
    for run in range(context.runs):
        var = context.var / str(run)
        var.mkdir()
        with local_stack(var / "polled", databases=["relay"], say=context.say) as stack:
            last = run == context.runs - 1
            asyncio.run(_poll(context, stack, found, rows, messages, many if last else 0))
        with local_stack(var / "captured", databases=["relay"], cdc=True, say=context.say) as stack:
            asyncio.run(_capture(context, stack, found, rows, messages))
    return _section(found, rows, many)


async def _poll(context: Context, stack: Stack, found: _Found, rows: int, messages: int, many: int) -> None:
    await prepare(stack)
    for after, name in (("mark", "polling, rows marked"), ("delete", "polling, rows deleted")):
        context.say(found.burst(name, await polled(stack, context.var, rows, after)))
    context.say(found.latency("polling", await steady(stack, context.var, messages)))
    if many:
        name = f"polling, payloads of {LARGE // 1000} kB"
        context.say(found.burst(name, await large(stack, context.var)))
        name = f"polling, one waits of a hundred in {many:,} rows"
        context.say(found.burst(name, await polled_among_many(stack, context.var, many)))
        context.say(found.latency(name, await steady(stack, context.var, messages, emptied=False)))


async def _capture(context: Context, stack: Stack, found: _Found, rows: int, messages: int) -> None:
    await prepare(stack)
    context.say(found.burst("Debezium", await captured(stack, context.var, rows)))
    context.say(found.latency("Debezium", await steady(stack, context.var, messages, kind="cdc")))


def _section(found: _Found, rows: int, many: int) -> Section:
    rates = {name: median(each.rate for each in bursts) for name, bursts in found.bursts.items()}
    most = {name: max(each.megabytes for each in bursts) for name, bursts in found.bursts.items()}
    times = {
        name: [median(getattr(each, share) for each in latencies) * 1000 for share in ("p50", "p99")]
        for name, latencies in found.latencies.items()
    }
    return Section(
        "Outbox relay",
        [
            ReportTable(
                f"{rows:,} rows of 200 bytes that wait",
                ("", "rows/s", "most MB"),
                [(name, f"{rates[name]:,.0f}", f"{most[name]:.0f}") for name in rates],
            ),
            ReportTable(
                f"From the commit to a reader of the topic, at {RATE:g} rows/s",
                ("", "p50 ms", "p99 ms"),
                [(name, f"{p50:.1f}", f"{p99:.1f}") for name, (p50, p99) in times.items()],
            ),
        ],
        [
            "The memory is that of one polling relay's process, or of Kafka Connect's.",
            f"{many // 100:,} of {many:,} rows wait. This and large payloads were measured once.",
            "Debezium writes in transactions (exactly once), one relay polls with an idempotent producer.",
            "PostgreSQL, the broker, the relay, its writer and its reader share the machine.",
        ],
    )
