"""Section micro: count events by key, remember their ids, pass each one on; the lane beside its peers.

Each peer is one worker process on one broker, reads the same preloaded events, and writes to a topic of its
own, whose growth is the rate. Peers take turns, and every event must have come out exactly once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.kafka import check_each_once, create, delete_topics_of, preload, watch_growth
from benchmarks.peers.catalog import LANE, Peer, catalog
from benchmarks.peers.workload import KEYS, PARTITIONS, Format, Run
from benchmarks.rate import COUNTED, Rate, rate_of
from benchmarks.sections import Context, NotMeasured, Section, Table
from streams.local import local_stack

SECTION = "micro"
PROJECT = Path(__file__).parents[1]
TIMEOUT = 240.0
TITLES = {Format.JSON: "JSON", Format.AVRO: "Avro"}
KEYS_IN_REPORT = {Format.JSON: "micro", Format.AVRO: "micro_avro"}


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many events a peer gets, by its speed."""

    fast: int
    slow: int

    def of(self, peer: Peer) -> int:
        """Those of a peer."""
        return self.slow if peer.slow else self.fast


FULL = Amounts(fast=300_000, slow=15_000)
QUICK = Amounts(fast=100_000, slow=6_000)

Rates = Mapping[str, Sequence[Rate]]
"""By the name of the peer, a rate for each run."""


def measure(context: Context) -> Section:
    """The lane and all its peers, in both formats."""
    peers = catalog(context.var, context.say)
    amounts = QUICK if context.quick else FULL
    with local_stack(context.var / "stack", tiered=True, say=context.say) as stack:
        ground = Ground(stack.bootstrap, context.var, context.say)
        rates = {form: alternate(ground, peers, form, amounts, context.runs) for form in Format}
    return section(peers, rates, amounts)


@dataclass(frozen=True, slots=True)
class Ground:
    """Where peers run: the broker, a directory, and who hears of progress."""

    bootstrap: str
    var: Path
    say: Callable[[str], None]


def alternate(
    ground: Ground, peers: Sequence[Peer], form: Format, amounts: Amounts, runs: int
) -> dict[str, list[Rate]]:
    """Each peer `runs` times, one after the other; every second round backwards."""
    sources = {events: f"bench.made.{form}.{events}" for events in {amounts.of(peer) for peer in peers}}
    for events, topic in sources.items():
        ground.say(f"writing {events:,} events ({form})")
        asyncio.run(preload(ground.bootstrap, topic, form, events))
    rates: dict[str, list[Rate]] = {peer.name: [] for peer in peers}
    for number in range(runs):
        for peer in peers if number % 2 == 0 else reversed(peers):
            events = amounts.of(peer)
            name = f"{peer.name.replace('_', '-')}-{form}-{number}"
            run = Run(
                name=name,
                bootstrap=ground.bootstrap,
                source=sources[events],
                output=f"bench.counted.{name}",
                var=str(ground.var / "state" / name),
                form=form,
            )
            rate = asyncio.run(run_once(ground, peer, run, events))
            asyncio.run(delete_topics_of(ground.bootstrap, name))
            says = f"{rate.per_second:>10,.0f} events/s {rate.cpu:6.1f} s CPU"
            ground.say(f"  {form} run {number + 1}  {peer.name:22}{says}")
            rates[peer.name].append(rate)
    return rates


async def run_once(ground: Ground, peer: Peer, run: Run, events: int) -> Rate:
    """One run of a peer. Raises NotMeasured when it ends, is too slow, or loses or doubles an event."""
    await create(run.bootstrap, run.output)
    log = ground.var / "log" / f"{run.name}.log"
    try:
        with program(peer, run, log) as cpu:
            samples = await watch_growth(run.bootstrap, run.output, events, cpu, TIMEOUT)
            await check_each_once(run.bootstrap, run.output, run.form, events)
        return rate_of(samples, events)
    except (NotMeasured, ValueError) as error:
        raise NotMeasured(f"{peer.title} ({run.form}): {error}; its output: {log}") from error


@contextmanager
def program(peer: Peer, run: Run, log: Path) -> Iterator[Callable[[], float]]:
    """The peer's process, killed at the end; gives a function that tells its processor time in seconds.

    That one raises NotMeasured when the process has ended.
    """
    state = Path(run.var)
    state.mkdir(parents=True)
    log.parent.mkdir(exist_ok=True)
    environment = {**os.environ, **run.environment(), **peer.environment}
    with log.open("wb") as out:
        process = subprocess.Popen(peer.command, cwd=PROJECT, env=environment, stdout=out, stderr=out)
    watched = psutil.Process(process.pid)

    def cpu() -> float:
        if (status := process.poll()) is not None:
            raise NotMeasured(f"its program ended with status {status}")
        times = watched.cpu_times()
        return float(times.user + times.system)

    try:
        yield cpu
    finally:
        process.kill()  # all is committed and checked, or given up: nothing is worth waiting for
        process.wait()
        shutil.rmtree(state)


def section(peers: Sequence[Peer], rates: Mapping[Format, Rates], amounts: Amounts) -> Section:
    """What was found, as tables and numbers."""
    numbers: dict[str, object] = {
        KEYS_IN_REPORT[form]: {name: round(_per_second(runs)) for name, runs in found.items()}
        for form, found in rates.items()
    }
    numbers["micro_runs"] = {
        KEYS_IN_REPORT[form]: {
            name: [{"events_per_second": round(run.per_second), "cpu": round(run.cpu, 2)} for run in runs]
            for name, runs in found.items()
        }
        for form, found in rates.items()
    }
    events = (
        f"{amounts.fast:,} preloaded events ({amounts.slow:,} for stock Faust) over {KEYS:,} keys and "
        f"{PARTITIONS} partitions; one broker, one worker process. The rate is that of the output topic's "
        f"growth from {COUNTED[0]:.0%} to {COUNTED[1]:.0%} of it. Every event was checked to have come out "
        "exactly once."
    )
    figures = (
        'Medians. "Lane / this" is the median of the ratios of runs in the same round. CPU is processor '
        "time of the worker for 100,000 events, in seconds."
    )
    tables = [table(peers, found, TITLES[form]) for form, found in rates.items()]
    return Section("Micro workload", tables, numbers, [events, figures])


def table(peers: Sequence[Peer], rates: Rates, title: str) -> Table:
    """The peers by speed."""
    ranked = sorted(peers, key=lambda peer: -_per_second(rates[peer.name]))
    return Table(title, ["", "events/s", "lane / this", "CPU s"], [_row(peer, rates) for peer in ranked])


def _row(peer: Peer, rates: Rates) -> list[str]:
    runs = rates[peer.name]
    ratios = [lane.per_second / other.per_second for lane, other in zip(rates[LANE], runs, strict=True)]
    return [
        peer.title + (f" ({peer.lacks})" if peer.lacks else ""),
        f"{_per_second(runs):,.0f}",
        f"{median(ratios):.2f}",
        f"{median(run.cpu for run in runs):.1f}",
    ]


def _per_second(runs: Sequence[Rate]) -> float:
    return median(run.per_second for run in runs)
