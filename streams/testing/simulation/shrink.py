"""Makes a failing plan smaller: steps are left out for as long as it fails by the same invariant."""

from __future__ import annotations

from streams.testing.simulation.plan import Plan
from streams.testing.simulation.play import run


def shrink(plan: Plan, invariant: str) -> Plan:
    """The smallest plan found. Groups of steps are tried first, then single ones."""
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
