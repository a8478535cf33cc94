"""Shrinks a failing plan: removes steps as long as the same invariant is still violated."""

from __future__ import annotations

from streams.testing.simulation.plan import Plan
from streams.testing.simulation.play import run


def shrink(plan: Plan, invariant: str) -> Plan:
    """The smallest failing plan found. Removes groups of steps first, then single steps."""
    size = max(1, len(plan.steps) // 2)
    while True:
        found = False
        for first in range(0, len(plan.steps), size):
            smaller = plan.without(set(range(first, first + size)))
            if len(smaller.steps) < len(plan.steps) and _fails(smaller, invariant):
                plan, found = smaller, True
                break
        if found:
            size = min(size, max(1, len(plan.steps) // 2))
        elif size == 1:
            return plan
        else:
            size //= 2


def _fails(plan: Plan, invariant: str) -> bool:
    return any(finding.invariant == invariant for finding in run(plan).findings)
