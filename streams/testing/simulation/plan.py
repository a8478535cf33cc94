"""The events of a simulated run, as data: it is printed, and made smaller when the run fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """An invariant that does not hold, and where."""

    invariant: str
    where: str


@dataclass(frozen=True)
class PlanStep:
    """Something that happens at a time, in seconds since the run began."""

    at: float
    kind: str
    what: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at:8.2f} {self.kind} {' '.join(map(str, self.what))}"


@dataclass(frozen=True)
class Plan:
    """A run. `seed` decides what the steps leave open: latencies, the order of answers."""

    seed: int
    partitions: int
    lanes: int
    machines: int
    standbys: int
    shapes: tuple[Any, ...]
    options: dict[str, Any]
    steps: tuple[PlanStep, ...]

    def without(self, steps: set[int]) -> Plan:
        """The same with fewer steps."""
        return replace(self, steps=tuple(s for n, s in enumerate(self.steps) if n not in steps))
