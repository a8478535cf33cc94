"""The plan of a simulated run as data, which can be printed, and shrunk after a failure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """A violated invariant, and where it was found."""

    invariant: str
    where: str


@dataclass(frozen=True)
class PlanStep:
    """A fault or event `at` a time, in seconds since the run began; `what` has its arguments."""

    at: float
    kind: str
    what: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at:8.2f} {self.kind} {' '.join(map(str, self.what))}"


@dataclass(frozen=True)
class Plan:
    """A run. `seed` determines what the steps do not state, such as latencies and the order of answers."""

    seed: int
    partitions: int
    lanes: int
    machines: int
    standbys: int
    shapes: tuple[Any, ...]
    options: dict[str, Any]
    steps: tuple[PlanStep, ...]

    def without(self, steps: set[int]) -> Plan:
        """The same plan without the steps with these numbers."""
        return replace(self, steps=tuple(s for n, s in enumerate(self.steps) if n not in steps))
