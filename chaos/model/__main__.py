"""The command: the protocol's whole state space, then a counter-example for each negative control.

Its exit status is 1 when a rule is broken, the space was not visited as a whole, or a control breaks nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from chaos.model.controls import CONTROLS, BrokenSpec
from chaos.model.explorer import DEAD_END, Space, explore
from chaos.model.protocol import ProtocolModel, State
from chaos.model.rules import RULES
from chaos.model.spec import Spec

#: Asks for the protocol alone.
NO_CONTROL = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    report: dict[str, object] = {}
    passed = True
    for name, spec in _specs(options).items():
        space = explore(ProtocolModel(spec), limit=options.limit)
        passed &= space.complete and not space.broken
        report[name] = {"bounds": _bounds(spec), **_summary(space)}
        if not options.json:
            print_space(name, spec, space)
    for control in CONTROLS:
        if options.control not in (None, control.name):
            continue
        space = explore(ProtocolModel(control.spec), until=control.breaks, limit=options.limit)
        passed &= control.breaks in space.broken
        report[control.name] = {"about": control.about, "breaks": control.breaks, **_summary(space)}
        if not options.json:
            print_control(control, space)
    if options.json:
        print(json.dumps(report, indent=2))
    return 0 if passed else 1


def _specs(options: argparse.Namespace) -> dict[str, Spec]:
    """The specs that must hold; none when one control is chosen."""
    if options.control not in (None, NO_CONTROL):
        return {}
    covered = Spec(messages=options.messages, max_batch=options.max_batch)
    # What lanes write themselves is not repeated, and skips the inbox.
    once = tuple(dict.fromkeys(options.messages))
    without = replace(covered, messages=once, inbox=False)
    return {
        "topics with an inbox": covered,
        "topics without": without,
        "only keys wait": replace(without, overtakes=True, max_batch=1),
        # One message, and the one that it sends: with two there are millions of states.
        "loopback": replace(without, messages=once[:1], loops=True, max_batch=1),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.model", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    names = [control.name for control in CONTROLS]
    parser.add_argument("--control", choices=[*names, NO_CONTROL], help="only this negative control, or none")
    parser.add_argument(
        "--messages",
        type=_messages,
        default=(1, 2, 1),
        help="ids of the input in order, as 1,2,1 (the default)",
    )
    parser.add_argument("--max-batch", type=int, default=3, help="messages in a transaction at most (3)")
    parser.add_argument("--limit", type=int, default=10_000_000, help="states to visit at most (10,000,000)")
    return parser


def _messages(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _bounds(spec: Spec) -> dict[str, object]:
    chosen = asdict(spec)
    return {name: chosen[name] for name in ("messages", "max_batch", "inbox", "overtakes", "loops")}


def _summary(space: Space[State]) -> dict[str, object]:
    return {
        "states": space.states,
        "transitions": space.transitions,
        "depth": space.depth,
        "goals": space.goals,
        "complete": space.complete,
        "seconds": round(space.seconds, 2),
        "broken": {rule: list(trace.steps) for rule, trace in space.broken.items()},
    }


def print_space(name: str, spec: Spec, space: Space[State]) -> None:
    """The size of a space, its bounds, and whether each rule holds."""
    print(
        f"{name}: messages {spec.messages}, at most {spec.max_batch} in a transaction; two workers; any"
        " number of crashes, freezes, rebalances, lost requests and answers, timeouts and lost disks"
    )
    print(
        f"  {space.states:,} states, {space.transitions:,} transitions, depth {space.depth},"
        f" {'complete' if space.complete else 'NOT COMPLETE'}, {space.seconds:.1f} s of processor time"
    )
    for rule in (*RULES, DEAD_END):
        print(f"  {'BROKEN' if rule in space.broken else 'holds '}  {rule}")
        _print_steps(space, rule)
    print()


def print_control(control: BrokenSpec, space: Space[State]) -> None:
    """A control's counter-example, step by step."""
    found = control.breaks in space.broken
    print(f"{control.name}: {control.about}")
    print(f"  {'breaks' if found else 'DOES NOT BREAK'}: {control.breaks} ({space.states:,} states seen)")
    _print_steps(space, control.breaks)
    print()


def _print_steps(space: Space[State], rule: str) -> None:
    trace = space.broken.get(rule)
    for number, step in enumerate(trace.steps if trace else (), start=1):
        print(f"    {number:2}. {step}")


if __name__ == "__main__":
    sys.exit(main())
