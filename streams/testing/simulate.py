"""Run your handlers in a simulated cluster with random faults, and compare the result with a serial run.

    python -m streams.testing.simulate myapp:app --workload myapp_tests:workload --seeds 0:200

Exit status: 0 if no run failed, 1 if a run failed, 2 if the command could not run.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

import streams.errors
from streams.errors import SteadfaustError
from streams.testing.simulation.play import run
from streams.testing.simulation.seeds import seeds_of
from streams.testing.simulation.shrink import shrink
from streams.testing.simulation.users import Simulated, report

_FUNCTION = "module:function"
#: Number of seeds between progress lines on stderr.
_EACH = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments. Returns its exit status."""
    asked = _parser().parse_args(arguments)
    try:
        resources, check = _named(asked.resources), _named(asked.check)
        dead = tuple(map(_error, asked.dead))
        simulated = Simulated(_named(asked.app), _named(asked.workload), resources, check, dead)
        if asked.seed is not None:
            return _one(simulated, asked)
        return _many(simulated, asked)
    except (SteadfaustError, _NotThere) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m streams.testing.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("app", metavar="module:app", help="the choreography, or a Worker")
    parser.add_argument(
        "--workload", required=True, metavar=_FUNCTION, help="function that yields the messages to send"
    )
    parser.add_argument(
        "--resources", metavar=_FUNCTION, help="function that returns the resources of handlers"
    )
    parser.add_argument("--check", metavar=_FUNCTION, help="function with further assertions")
    parser.add_argument(
        "--dead",
        action="append",
        default=[],
        metavar="module:Error",
        help="error for which messages may be dead-lettered; may be repeated. Errors of `streams` and of"
        " Python need no module",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run only this seed")
    which.add_argument(
        "--seeds",
        type=seeds_of,
        default="0:200",
        metavar="A:B",
        help="run the seeds from A up to, but not including, B",
    )
    parser.add_argument(
        "--shrink", action="store_true", help="reduce a failure to the smallest run that still fails"
    )
    parser.add_argument("--verbose", action="store_true", help="with --seed: print every event")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each reported run")
    return parser


class _NotThere(Exception):
    """No object has the given name."""


def _named(text: str | None) -> Any:
    """The object that `module:name` names. Raises _NotThere."""
    if text is None:
        return None
    module, _, name = text.partition(":")
    if not name:
        raise _NotThere(f"{text!r} names nothing: give module:name, such as myapp:app")
    try:
        return attrgetter(name)(import_module(module))
    except (ModuleNotFoundError, AttributeError) as error:
        raise _NotThere(f"{text!r} is not there: {error}") from error


def _error(text: str) -> type[Exception]:
    """The exception class that an option names. Raises _NotThere."""
    if ":" in text:
        found = _named(text)
    else:
        found = getattr(streams.errors, text, None) or getattr(builtins, text, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise _NotThere(f"--dead {text}: no error class has that name; give module:name, such as shop:Closed")
    return found


def _one(simulated: Simulated, asked: argparse.Namespace) -> int:
    plan = simulated.plan(asked.seed)
    result = run(plan, verbose=asked.verbose)
    if result.findings and asked.shrink:
        plan = shrink(plan, result.findings[0].invariant)
        result = run(plan, verbose=asked.verbose)
    if asked.verbose and not asked.json:
        print(*result.trace, sep="\n")
    _tell(plan, result, asked)
    return bool(result.findings)


def _many(simulated: Simulated, asked: argparse.Namespace) -> int:
    seeds, failed = asked.seeds, 0
    for done, seed in enumerate(seeds):
        if done and done % _EACH == 0:
            print(f"{done} of {len(seeds)} seeds, {failed} failed", file=sys.stderr, flush=True)
        plan = simulated.plan(seed)
        result = run(plan)
        if result.findings:
            failed += 1
            if asked.shrink:
                plan = shrink(plan, result.findings[0].invariant)
                result = run(plan)
            _tell(plan, result, asked)
    if not asked.json:
        print(f"seeds {seeds.start}:{seeds.stop}: {failed} failed")
    return bool(failed)


def _tell(plan: Any, result: Any, asked: argparse.Namespace) -> None:
    if not asked.json:
        print(report(plan, result.findings))
        return
    told = {
        "seed": plan.seed,
        "findings": [each._asdict() for each in result.findings],
        "steps": [str(step).strip() for step in plan.steps],
        **({"trace": result.trace} if asked.verbose else {}),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # with 0, sets have the same order in each run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "streams.testing.simulate", *sys.argv[1:]])
    sys.exit(main())
