"""What a negative control is: the real code without one of its protections, and how it counts as found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from streams.model.choreography import Choreography, Route, choreography
from streams.testing.simulation import run
from streams.testing.simulation.plan import Finding, Plan, PlanStep
from tests.simulation.plans import plan_of

Off = AbstractContextManager[Any]

#: Findings that the patch of a control itself could lead to, by an error.
_CRASHES = ("a worker ends unasked", "an error that is lost", "no lane_error", "no lane_quarantined")
ENDS, QUARANTINED = _CRASHES[0], _CRASHES[3]


class Control(NamedTuple):
    """What the code does without a protection, and how to take that away.

    Attributes:
        finds: the invariant that has to be broken; empty: any that a crash does not break.
        once: nothing comes twice from outside: there is no inbox.
    """

    about: str
    off: Callable[[], Off]
    finds: str = ""
    once: bool = False

    def plan_of(self, seed: int) -> Plan:
        """The run of a seed."""
        plan = plan_of(seed)
        return replace(plan, steps=tuple(_once(plan.steps))) if self.once else plan

    def finding(self, findings: Sequence[Finding]) -> Finding | None:
        """The finding that shows it."""
        for each in findings:
            if self.off is nullcontext:
                return each
            if self.finds == each.invariant or (not self.finds and each.invariant not in _CRASHES):
                return each
        return None


#: Where a step that sends a message has its id.
_ID_IN = {"write": 1, "forge": 1, "transfer": 5, "parcel": 1, "errand": 1, "entry": 1}


def _once(steps: Iterable[PlanStep]) -> Iterator[PlanStep]:
    """The steps of a plan, without messages and wishes of operators that come again."""
    seen = set()
    for step in steps:
        at = _ID_IN.get(step.kind)
        if at is None:
            yield replace(step, what=(step.what[0], False)) if step.kind == "operate" else step
        elif step.what[at] not in seen:
            seen.add(step.what[at])
            yield step


def all_off(*offs: Callable[[], Off]) -> Callable[[], Off]:
    """Several protections are off."""

    def both() -> Off:
        stack = ExitStack()
        for each in offs:
            stack.enter_context(each())
        return stack

    return both


def off(target: Any, name: str, other: Any) -> Callable[[], Off]:
    return lambda: patch.object(target, name, other)


def no_inbox() -> Off:
    def without(*routes: Route) -> Choreography:
        return choreography(*(replace(route, inbox=False) for route in routes))

    return patch.object(run, "choreography", without)
