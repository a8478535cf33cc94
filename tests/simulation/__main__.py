"""`python -m tests.simulation --seed N`: one run, event by event; `--seeds A:B,C`: many, what they find."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import typing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from hashlib import sha256
from typing import NamedTuple

import msgspec

from streams.engine.life import session
from streams.testing.simulation.coverage import Strike, table, unmet
from streams.testing.simulation.play import run
from streams.testing.simulation.seeds import seeds_of
from streams.testing.simulation.shrink import shrink
from tests.simulation.control import Control
from tests.simulation.controls import CONTROLS
from tests.simulation.plans import plan_of
from tests.simulation.skew import NO_FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--seeds", type=several, default="0:200", metavar="A:B,C", help="all from A to before B, and C"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: print the smallest plan that fails"
    )
    parser.add_argument("--control", choices=CONTROLS, default="", help="without this protection")
    parser.add_argument(
        "--until-found", action="store_true", help="end at the first seed that finds something"
    )
    parser.add_argument("--digests", action="store_true", help="with --seeds: a digest of what each run does")
    parser.add_argument("--processes", type=int, default=1, help="with --seeds: so many at once")
    parser.add_argument("--having", nargs="*", default=(), help="with --seeds: plans with such a step alone")
    parser.add_argument(
        "--controls",
        nargs="*",
        metavar="NAME",
        help="a table: these controls, or all, each with the first seed that finds it",
    )
    parser.add_argument("--json", action="store_true", help="with --controls: a line of JSON for each")
    parser.add_argument(
        "--coverage", action="store_true", help="which fault has struck in which state of a lane"
    )
    parser.add_argument(
        "--tick", type=float, default=0.5, help="seconds between a lane's looks at what is due"
    )
    options = parser.parse_args()
    # Ten of them in a second, as users' lanes have them, were a third of a run.
    session.TICK = options.tick
    # Each run wires its applications again. Without this, parsing the same type hints takes a twelfth of it,
    # and looking for garbage among what was imported an eighth.
    vars(typing)["compile"] = cache(compile)
    msgspec.structs.fields = cache(msgspec.structs.fields)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets have an order then, the same each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    if options.controls is not None:
        names = options.controls or [name for name in CONTROLS if name]
        return print_controls(names, options.seeds, as_json=options.json)
    with CONTROLS[options.control].off():
        if options.seed is not None:
            return one(options.seed, CONTROLS[options.control], smaller=options.shrink)
        if options.coverage:
            return print_coverage(options.seeds)
        wanted = (options.control, options.until_found, set(options.having), options.digests)
        return many_at_once(options.seeds, options.processes, wanted)


def one(seed: int, control: Control, *, smaller: bool) -> int:
    """A run, event by event."""
    plan = control.plan_of(seed)
    if smaller and (findings := run(plan).findings):
        plan = shrink(plan, findings[0].invariant)
    print(plan.partitions, plan.lanes, plan.machines, plan.standbys, plan.shapes, plan.options)
    result = run(plan, verbose=True)
    print(*result.trace, sep="\n")
    for finding in result.findings:
        print("FOUND", *finding, sep=": ")
    return bool(result.findings)


def several(text: str) -> list[int]:
    """The seeds of a range, or of several of them with commas between."""
    return [seed for each in text.split(",") for seed in seeds_of(each)]


def many_at_once(seeds: list[int], processes: int, wanted: tuple[str, bool, set[str], bool]) -> int:
    """All of these runs, by so many processes: in parts, each of which says how it went. Returns 1 where one
    found something.
    """
    if processes == 1:
        return many(seeds, *wanted) > 0
    began, size = time.monotonic(), -(-len(seeds) // (10 * processes))
    with ProcessPoolExecutor(processes) as pool:
        parts = [pool.submit(many, seeds[n : n + size], *wanted) for n in range(0, len(seeds), size)]
        failed = sum(part.result() for part in parts)
    print(f"{len(seeds)} runs, {failed} failed, {time.monotonic() - began:.0f} s by {processes} processes")
    return failed > 0


def many(seeds: list[int], name: str, until_found: bool, having: set[str], digests: bool) -> int:
    """These runs without a protection, and what they find. Returns how many found something."""
    began, failed, control = time.process_time(), 0, CONTROLS[name]
    for seed in seeds:
        plan = control.plan_of(seed)
        if having and having.isdisjoint(step.kind for step in plan.steps):
            continue
        result = run(plan, verbose=digests)
        if digests:
            print(seed, sha256("\n".join(result.trace).encode()).hexdigest())
        if (found := control.finding(result.findings)) is not None:
            failed += 1
            print(seed, found.invariant, found.where[:300], sep=": ", flush=True)
            if until_found:
                break
    took = time.process_time() - began
    print(f"seeds {seeds[0]} to {seeds[-1]}, {failed} failed, {took:.1f} s", flush=True)
    return failed


def print_coverage(seeds: list[int]) -> int:
    """In how many runs each kind of fault has struck in each state."""
    counts: Counter[Strike] = Counter()
    for seed in seeds:
        counts.update(run(plan_of(seed)).coverage)
    kinds = {kind for kind, _ in counts} - NO_FAULTS
    print(*table(counts, kinds), sep="\n")
    never = unmet(counts)
    names = ", ".join(" ".join(each) for each in never) or "nothing that can be"
    print(f"seeds {seeds[0]} to {seeds[-1]}, never met: {names}")
    return bool(never)


class Searched(NamedTuple):
    """The result of a search for a control.

    Attributes:
        seed: the first one that finds it; None: none does.
        invariant: what does not hold.
        crash: the first run that the judge, or the control, could not bear, with its error; empty: none.
    """

    control: str
    about: str
    seed: int | None
    invariant: str
    crash: str


def search(name: str, seeds: list[int]) -> Searched:
    """The first seed that finds a control, and by which invariant. A run that ends with an error finds
    nothing.
    """
    control, crash = CONTROLS[name], ""
    with control.off():
        for seed in seeds:
            try:
                found = control.finding(run(control.plan_of(seed)).findings)
            except Exception as error:  # noqa: BLE001 - the table names it, and goes on
                crash = crash or f"seed {seed}: {error!r}"
                continue
            if found is not None:
                return Searched(name, control.about, seed, found.invariant, crash)
    return Searched(name, control.about, None, "", crash)


def print_controls(names: list[str], seeds: list[int], *, as_json: bool) -> int:
    """The table of controls, by two processes. Returns 1 where one was not found, or a run ended with an
    error.
    """
    missed = 0
    if not as_json:
        print("| control | without it | seed | what does not hold |")
        print("|---|---|---|---|")
    with ProcessPoolExecutor(max_workers=2) as pool:
        for done in as_completed([pool.submit(search, name, seeds) for name in names]):
            each = done.result()
            missed += each.seed is None or bool(each.crash)
            if as_json:
                print(json.dumps(each._asdict()), flush=True)
                continue
            where = "not found" if each.seed is None else str(each.seed)
            crashed = f" **a run ends with an error** {each.crash}" if each.crash else ""
            print(f"| {each.control} | {each.about} | {where} | {each.invariant}{crashed} |", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
