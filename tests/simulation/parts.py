"""Parts of a run: each is a subject with its lines of the wiring, its steps, and what has to hold of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streams.model.choreography import Route

if TYPE_CHECKING:
    from tests.simulation.run import Run


class Finding(NamedTuple):
    """An invariant that does not hold, and where."""

    invariant: str
    where: str


@dataclass(frozen=True)
class Step:
    """Something that happens at a time, in seconds since the run began."""

    at: float
    kind: str
    what: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at:8.2f} {self.kind} {' '.join(map(str, self.what))}"


class Shape(Protocol):
    """What a plan has of a part: data, which is printed and makes the part."""

    def part(self, run: Run) -> Part:
        """The part of a run."""


class Part:
    """A subject of a run. Its method `do_<kind>` does the steps of that kind."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def routes(self) -> Sequence[Route]:
        """Its lines of the wiring."""
        raise NotImplementedError

    def resources(self) -> Mapping[str, Any]:
        """What its handlers need from outside, by name."""
        return {}

    def end_faults(self) -> None:
        """From now on nothing goes wrong any more."""

    def missing(self) -> list[str]:
        """What is still to be done; empty when all is settled."""
        return []

    def judge(self) -> list[Finding]:
        """What does not hold, when all is settled."""
        return []
