"""`python -m tests.simulation --seed N`: one run, event by event; `--seeds A:B`: many, and what they find."""

from __future__ import annotations

import argparse
import os
import sys
import time

from streams.testing.simulation.play import run
from streams.testing.simulation.shrink import shrink
from tests.simulation.controls import CONTROLS
from tests.simulation.plans import plan_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:200")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: print the smallest plan that fails"
    )
    parser.add_argument("--control", choices=CONTROLS, default="", help="without this protection")
    parser.add_argument(
        "--until-found", action="store_true", help="end at the first seed that finds something"
    )
    asked = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets have an order then, the same each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    with CONTROLS[asked.control]():
        if asked.seed is not None:
            return one(asked.seed, smaller=asked.shrink)
        return many(asked.seeds, until_found=asked.until_found)


def one(seed: int, *, smaller: bool) -> int:
    """A run, event by event."""
    plan = plan_of(seed)
    if smaller and (findings := run(plan).findings):
        plan = shrink(plan, findings[0].invariant)
    print(plan.partitions, plan.lanes, plan.machines, plan.standbys, plan.shapes, plan.options)
    result = run(plan, verbose=True)
    print(*result.trace, sep="\n")
    for finding in result.findings:
        print("FOUND", *finding, sep=": ")
    return bool(result.findings)


def many(seeds: str, *, until_found: bool) -> int:
    """All runs of a range, and what they find."""
    first, _, last = seeds.partition(":")
    began, failed = time.process_time(), 0
    for seed in range(int(first), int(last)):
        result = run(plan_of(seed))
        if result.findings:
            failed += 1
            print(seed, result.findings[0].invariant, result.findings[0].where[:300], sep=": ")
            if until_found:
                break
    print(f"seeds {seeds}, {failed} failed, {time.process_time() - began:.1f} s")
    return bool(failed)


sys.exit(main())
