"""Section micro: count events by key, remember their ids, pass each one on; the lane beside its peers.

Each peer is one worker process on one broker, reads the same preloaded events, and writes to a topic of its
own, whose growth is the rate. Peers take turns, and every event must have come out exactly once, with the
count that its key had.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.kafka import (
    COUNTED_SHARE,
    COUNTED_SHARE_WARM,
    Rate,
    check_output,
    create,
    delete_topics_of,
    preload,
    rate_of,
    watch_growth,
)
from benchmarks.peers.catalog import LANE, Peer, catalog
from benchmarks.peers.workload import KEYS, PARTITIONS, Format, PeerRun
from benchmarks.sections import Context, NotMeasured, ReportTable, Section
from streams.local import local_stack
from streams.model.application import LaneOptions

PROJECT = Path(__file__).parents[1]
TIMEOUT = 240.0
TITLES = {Format.JSON: "JSON", Format.AVRO: "Avro"}


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many events a peer gets, by its speed."""

    fast: int
    slow: int
    warmed: int

    def of(self, peer: Peer) -> int:
        """Those of a peer."""
        if peer.warmed:
            return self.warmed
        return self.slow if peer.slow else self.fast


FULL = Amounts(fast=300_000, slow=15_000, warmed=800_000)
QUICK = Amounts(fast=100_000, slow=6_000, warmed=300_000)

Rates = Mapping[str, Sequence[Rate]]
"""By the name of the peer, a rate for each run."""


def measure(context: Context) -> Section:
    """The lane and all its peers, in both formats."""
    amounts = QUICK if context.quick else FULL
    with sink() as collector, local_stack(context.var / "stack", tiered=True, say=context.say) as stack:
        peers = catalog(context.var, context.say, collector)
        ground = Ground(stack.bootstrap, context.var, context.say)
        rates = {form: alternate(ground, peers, form, amounts, context.runs) for form in Format}
    return section(peers, rates, amounts)


@dataclass(frozen=True, slots=True)
class Ground:
    """Where peers run: the broker, a directory, and where progress is printed."""

    bootstrap: str
    var: Path
    say: Callable[[str], None]


def alternate(
    ground: Ground, peers: Sequence[Peer], form: Format, amounts: Amounts, runs: int
) -> dict[str, list[Rate]]:
    """Each peer of the format `runs` times, one after the other; every second round backwards."""
    peers = [peer for peer in peers if form in peer.formats]
    sources = {events: f"bench.made.{form}.{events}" for events in {amounts.of(peer) for peer in peers}}
    for events, topic in sources.items():
        ground.say(f"writing {events:,} events ({form})")
        asyncio.run(preload(ground.bootstrap, topic, form, events))
    rates: dict[str, list[Rate]] = {peer.name: [] for peer in peers}
    for number in range(runs):
        for peer in peers if number % 2 == 0 else reversed(peers):
            events = amounts.of(peer)
            name = f"{peer.name.replace('_', '-')}-{form}-{number}"
            run = PeerRun(
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
            ground.say(f"  {form} run {number + 1}  {peer.name:38}{says}")
            rates[peer.name].append(rate)
    return rates


async def run_once(ground: Ground, peer: Peer, run: PeerRun, events: int) -> Rate:
    """One run of a peer. Raises NotMeasured when it ends, is too slow, or a part of its output is wrong."""
    await create(run.bootstrap, run.output)
    log = ground.var / "log" / f"{run.name}.log"
    try:
        with program(peer, run, log) as cpu:
            samples = await watch_growth(run.bootstrap, run.output, events, cpu, TIMEOUT)
            await check_output(run.bootstrap, run.output, run.form, events, counted=peer.counts)
        return rate_of(samples, events, COUNTED_SHARE_WARM if peer.warmed else COUNTED_SHARE)
    except (NotMeasured, ValueError) as error:
        raise NotMeasured(f"{peer.title} ({run.form}): {error}; its output: {log}") from error


@contextmanager
def program(peer: Peer, run: PeerRun, log: Path) -> Iterator[Callable[[], float]]:
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
    """A table for each format."""
    tables = [table(peers, found, TITLES[form]) for form, found in rates.items()]
    return Section("Micro workload", tables, notes(amounts))


def notes(amounts: Amounts) -> list[str]:
    """What a reader of the tables has to know."""
    first, last = COUNTED_SHARE
    events = (
        f"{amounts.fast:,} preloaded events ({amounts.slow:,} for stock Faust) over {KEYS:,} keys and "
        f"{PARTITIONS} partitions; one broker, one worker process. The rate is that of the output topic's "
        f"growth from {first:.0%} to {last:.0%} of it. Every event was checked to have come out exactly "
        "once, and with the count that its key had by then; the bare loops keep none."
    )
    java = (
        f"Kafka Streams gets {amounts.warmed:,} events and is counted from {COUNTED_SHARE_WARM[0]:.0%} of "
        "the growth on: it is slow for its first 300,000, while Java compiles it. It has typed serdes, "
        "exactly_once_v2, and Java's own garbage collector as it is. Two threads are measured with JSON."
    )
    commits = (
        f"The lane commits as soon as it can, at most {LaneOptions().max_batch:,} events at a time. Kafka "
        "Streams and Quix Streams commit at intervals, and nothing of theirs can be read before: they have "
        "one second, and with JSON 100 ms, too."
    )
    tuned = (
        "The garbage collector of every program in Python is set as that of the lane. All of them but Quix "
        "Streams, which has no event loop, run on uvloop."
    )
    figures = (
        'Medians. "Lane / this" is the median of the ratios of runs in the same round, once of events per '
        "second and once of events per second of processor time. CPU is processor time of the worker for "
        "100,000 events, in seconds."
    )
    return [events, java, commits, tuned, figures]


def table(peers: Sequence[Peer], rates: Rates, title: str) -> ReportTable:
    """The peers by speed."""
    measured = [peer for peer in peers if peer.name in rates]
    ranked = sorted(measured, key=lambda peer: -_per_second(rates[peer.name]))
    columns = ["", "events/s", "lane / this", "CPU s", "events per CPU second, lane / this"]
    return ReportTable(title, columns, [_row(peer, rates) for peer in ranked])


def _row(peer: Peer, rates: Rates) -> list[str]:
    runs = rates[peer.name]
    return [
        peer.title + (f" ({peer.lacks})" if peer.lacks else ""),
        f"{_per_second(runs):,.0f}",
        f"{_lane_over(rates, runs, lambda run: run.per_second):.2f}",
        f"{median(run.cpu for run in runs):.1f}",
        f"{_lane_over(rates, runs, _per_cpu_second):.2f}",
    ]


def _lane_over(rates: Rates, runs: Sequence[Rate], figure: Callable[[Rate], float]) -> float:
    """A figure of the lane to that of other runs, round by round: the machine changes between rounds."""
    return median(figure(lane) / figure(other) for lane, other in zip(rates[LANE], runs, strict=True))


def _per_second(runs: Sequence[Rate]) -> float:
    return median(run.per_second for run in runs)


def _per_cpu_second(run: Rate) -> float:
    return 100_000 / run.cpu


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def sink() -> Iterator[str]:
    """Where it listens, for as long as this is entered."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
