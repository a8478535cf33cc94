"""Run the tests in processes, give those that need a stack a second chance, and write how the run went.

    python -m tests.gate NAME [arguments of pytest]
    python -m tests.gate table      put the last run's seconds into tests/README.md

A test marked `stack` that fails is run once more at the end, by itself, when nothing competes with it. If it
passes then, the run is green, and says `flaky:` with the first failure, which var/test/flaky.json keeps. What
needs no stack is never run again. More than a few failures are no flakes. `make verify` runs nothing again.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.report import LAST, README, WANTED, Failure, failures_of

#: Failures that may be flakes; with more, something is broken.
MOST = 10
#: Files whose seconds are listed.
LISTED = 30
#: Most of a run waits, so that two processes serve two processors.
PROCESSES = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")

FLAKY = LAST.with_name("flaky.json")
_BEGIN, _END = "<!-- made by `make table` -->", "<!-- until here -->"


def main(arguments: Sequence[str]) -> int:
    name, *more = arguments
    if name == "table":
        run = json.loads(LAST.read_text())
        if run["run"] != "test":
            print(
                f"error: the last green run was `make {run['run']}`; the table is of `make test`", flush=True
            )
            return 1
        README.write_text(with_table(README.read_text(), run))
        return 0
    began, load = time.monotonic(), os.getloadavg()[0]
    FLAKY.unlink(missing_ok=True)
    first = LAST.with_name("first.json")
    code = pytest([*PROCESSES, *more], first)
    if code not in (0, 1):
        return code
    run: dict[str, Any] = json.loads(first.read_text())
    if code == 1 and name == "verify":  # it looks for what fails once in many runs
        return 1
    flaky = again(failures_of(run), more) if code == 1 else []
    if flaky is None:
        return 1
    for failure in flaky:
        print(f"flaky: {failure.nodeid}: {first_error(failure.text)}")
    if flaky:
        FLAKY.write_text(json.dumps([failure._asdict() for failure in flaky], indent=1))
    run |= {
        "run": name,
        "wall": round(time.monotonic() - began),
        "processors": len(os.sched_getaffinity(0)),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "date": time.strftime("%Y-%m-%d"),
        "flaky": [failure.nodeid for failure in flaky],
    }
    LAST.write_text(json.dumps(run, indent=1))
    minutes, seconds = divmod(run["wall"], 60)
    print(
        f"{name}: green in {minutes} min {seconds} s on {run['processors']} processors, "
        f"load {run['load'][0]} before and {run['load'][1]} after, {len(flaky)} flaky"
    )
    return 0


def pytest(arguments: Sequence[str], report: Path) -> int:
    """Run pytest in a process of its own; returns its exit code. Ctrl-C is pytest's to handle."""
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *arguments]
    with subprocess.Popen(command, env={**os.environ, WANTED: str(report)}) as running:
        while True:
            try:
                return running.wait()
            except KeyboardInterrupt:  # it got the signal, too, and ends
                continue


def again(failures: Sequence[Failure], arguments: Sequence[str]) -> list[Failure] | None:
    """Run the failed tests once more. Returns the failures that were flakes, or None if the run is red."""
    solid = [failure.nodeid for failure in failures if not failure.stack]
    if solid or not 0 < len(failures) <= MOST:
        print(f"\nnot run again: {len(failures)} failed, {len(solid)} of them without a stack", flush=True)
        return None
    print(f"\n{len(failures)} failed that need a stack: once more, by themselves", flush=True)
    report = LAST.with_name("again.json")
    options = [each for each in arguments if not Path(each).exists()]
    if pytest([*options, *(failure.nodeid for failure in failures)], report) != 0:
        return None
    passed = json.loads(report.read_text())["passed"]
    return list(failures) if passed >= len(failures) else None


def first_error(text: str) -> str:
    """What a failure says in one line."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (errors or text.strip().splitlines() or ["?"])[0]


def with_table(text: str, run: dict[str, Any]) -> str:
    """README.md with the figures of this run."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    minutes, seconds = divmod(run["wall"], 60)
    rows = [f"| `{file}` | {round(took)} |" for file, took in list(run["seconds"].items())[:LISTED]]
    said = (
        f"`make {run['run']}` of {run['date']}: {run['passed']:,} tests in {minutes} min {seconds} s, in two "
        f"processes on {run['processors']} processors, load {run['load'][0]} before it and "
        f"{run['load'][1]} after, {len(run['flaky'])} flaky."
    )
    lines = [said, "", "| file | seconds |", "| --- | --- |", *rows]
    return "\n".join([before + _BEGIN, "", *lines, "", _END + after])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
