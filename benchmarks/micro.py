"""`make bench`: the micro workload through the real lane and through stock Faust, side by side in one run.

100,000 preloaded JSON events over 2,000 keys; for each a row and an output, on the lane also an inbox entry.
Runs alternate; the table and `var/bench/report.json` have the medians in events/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kafka import distinct_ids, preload, watch_growth
from streams.local import local_stack

PARTITIONS = 4
KEYS = 2000
TIMEOUT = 300.0

#: The name in the report -> the module with the worker, and what of the environment is its own.
PEERS = {
    "lane": ("benchmarks.micro_lane", {}),
    "faust_at_least_once": ("benchmarks.stock_faust", {"BENCH_GUARANTEE": "at_least_once"}),
}


@contextmanager
def worker(module: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process of a benchmark; ended when the block is left."""
    faust = Path(sys.executable).parent / "faust"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(faust), "-A", module, "worker", "-l", "warn", "--without-web"],
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def run_once(name: str, *, bootstrap: str, var: Path, events: int) -> float:
    """One run of a peer on a topic of its own, in events/s. Raises RuntimeError when events are missing."""
    module, own = PEERS[name]
    run = f"{name.replace('_', '-')}-{time.time_ns() // 1_000_000}"
    topic = f"bench.{run}.v1"
    await preload(bootstrap, topic, partitions=PARTITIONS, events=events, keys=KEYS)
    environment = {
        **own,
        "BENCH_TOPIC": topic,
        "STEADFAUST_APP_ID": run,
        "STEADFAUST_BOOTSTRAP": bootstrap,
        "STEADFAUST_VAR": str(var),
        "STEADFAUST_PARTITIONS": str(PARTITIONS),
        "STEADFAUST_LANES": str(PARTITIONS),
        "STEADFAUST_REPLICATION": "1",
    }
    outputs = f"{topic}.counted"
    with worker(module, environment, var / "log" / f"{run}.log"):
        growth = await watch_growth(bootstrap, outputs, partitions=PARTITIONS, events=events, timeout=TIMEOUT)
    found = await distinct_ids(bootstrap, outputs, partitions=PARTITIONS)
    if found != events:
        raise RuntimeError(f"{name}: {found} of {events} events came out, see {var / 'log' / run}.log")
    print(f"  {name:22} {growth.per_second:10,.0f} events/s   {growth.seconds:6.1f} s", flush=True)
    return growth.per_second


def report(medians: dict[str, float], path: Path) -> None:
    """Write the numbers, and print them as ratios to the slowest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"micro": {name: round(rate) for name, rate in medians.items()}}, indent=2) + "\n"
    )
    slowest = min(medians.values())
    print(f"\n{'':24}{'events/s':>10}{'ratio':>8}")
    for name, rate in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"{name:24}{rate:10,.0f}{rate / slowest:8.1f}")
    print(f"\nmedians; written to {path}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--var", type=Path, default=Path("var/bench"))
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in PEERS}
    shutil.rmtree(arguments.var, ignore_errors=True)
    with local_stack(arguments.var, tiered=True, say=print) as stack:
        for run in range(arguments.runs):
            print(f"run {run + 1} of {arguments.runs}, {arguments.events:,} events", flush=True)
            for name in PEERS:
                rate = asyncio.run(
                    run_once(
                        name, bootstrap=stack.bootstrap, var=arguments.var.resolve(), events=arguments.events
                    )
                )
                rates[name].append(rate)
    report({name: statistics.median(runs) for name, runs in rates.items()}, arguments.var / "report.json")


if __name__ == "__main__":
    main()
