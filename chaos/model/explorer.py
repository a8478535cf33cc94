"""Visits every state that a system can reach, breadth first, so that a counter-example is a shortest one.

Knows nothing of lanes. A system says where it starts, what may happen next, which rules a state breaks and
which states are goals. Besides broken rules there are dead ends: states from which no goal can be reached any
more, even if no further fault happens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from time import process_time
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

#: The name under which dead ends are reported beside a system's own rules.
DEAD_END = "no dead end"


class ModelStep(NamedTuple, Generic[S]):
    """What may happen in a state. A fault is never needed to reach a goal."""

    label: str
    state: S
    is_fault: bool = False


class System(Protocol[S]):
    """What is explored."""

    def initial(self) -> S:
        """Where it starts."""

    def steps(self, state: S) -> Iterable[ModelStep[S]]:
        """Everything that may happen next; the same for the same state each time."""

    def broken(self, state: S) -> Sequence[str]:
        """The names of the rules that do not hold in a state."""

    def is_goal(self, state: S) -> bool:
        """Whether all that was to be done is done."""


@dataclass(frozen=True, slots=True)
class Trace(Generic[S]):
    """A shortest way to a state: the labels of its steps, and where it ends."""

    steps: tuple[str, ...]
    state: S


@dataclass(frozen=True, slots=True)
class Space(Generic[S]):
    """What was seen. `complete` means every reachable state; `depth` is the longest of the shortest ways,
    `seconds` are of processor time. `broken` has a shortest way for each rule that does not hold.
    """

    states: int
    transitions: int
    depth: int
    goals: int
    complete: bool
    seconds: float
    broken: dict[str, Trace[S]] = field(default_factory=dict)


def explore(system: System[S], *, until: str | None = None, limit: int = 10_000_000) -> Space[S]:
    """Visit every reachable state, at most `limit` of them. With `until`, stop at the first that breaks that
    rule. Dead ends are looked for when every state was visited.
    """
    return _Exploration(system).run(until, limit)


class _Exploration(Generic[S]):
    def __init__(self, system: System[S]) -> None:
        self._system = system
        self._states: list[S] = []
        self._numbers: dict[S, int] = {}
        self._parents = array("i")
        self._goals: list[int] = []
        self._broken: dict[str, int] = {}
        #: Steps that are no faults, from and to.
        self._sources, self._targets = array("i"), array("i")

    def run(self, until: str | None, limit: int) -> Space[S]:
        began = process_time()
        self._visit(self._system.initial(), -1)
        transitions, number = 0, 0
        while number < len(self._states) <= limit and until not in self._broken:
            transitions += self._expand(number)
            number += 1
        complete = number == len(self._states)
        if complete:
            self._look_for_dead_ends()
        return Space(
            states=len(self._states),
            transitions=transitions,
            depth=len(self._way(len(self._states) - 1)) - 1,
            goals=len(self._goals),
            complete=complete,
            seconds=process_time() - began,
            broken={rule: self._trace(number) for rule, number in self._broken.items()},
        )

    def _expand(self, number: int) -> int:
        """Visit what follows a state; returns the number of steps."""
        numbers, count = self._numbers, 0
        for _, state, is_fault in self._system.steps(self._states[number]):
            count += 1
            target = numbers.get(state)
            if target is None:
                target = self._visit(state, number)
            if not is_fault:
                self._sources.append(number)
                self._targets.append(target)
        return count

    def _visit(self, state: S, parent: int) -> int:
        number = len(self._states)
        self._numbers[state] = number
        self._states.append(state)
        self._parents.append(parent)
        for rule in self._system.broken(state):
            self._broken.setdefault(rule, number)
        if self._system.is_goal(state):
            self._goals.append(number)
        return number

    def _look_for_dead_ends(self) -> None:
        """Walk back from the goals over steps that are no faults; the first state not met is a dead end."""
        alive = bytearray(len(self._states))
        for goal in self._goals:
            alive[goal] = 1
        before = self._predecessors()
        front = list(self._goals)
        while front:
            for number in before(front.pop()):
                if not alive[number]:
                    alive[number] = 1
                    front.append(number)
        dead = alive.find(0)
        if dead >= 0:
            self._broken[DEAD_END] = dead

    def _predecessors(self) -> Callable[[int], Sequence[int]]:
        """Sorted by counting: one array of predecessors, and where each state's begin."""
        counts = [0] * (len(self._states) + 1)
        for target in self._targets:
            counts[target + 1] += 1
        begins = list(accumulate(counts))
        free, sources = begins.copy(), array("i", bytes(4 * len(self._sources)))
        for source, target in zip(self._sources, self._targets, strict=True):
            sources[free[target]] = source
            free[target] += 1
        return lambda number: sources[begins[number] : begins[number + 1]]

    def _way(self, number: int) -> list[int]:
        way = [number]
        while (number := self._parents[number]) >= 0:
            way.append(number)
        return way[::-1]

    def _trace(self, number: int) -> Trace[S]:
        """Labels are not kept while exploring: they are worked out again along the way."""
        states = [self._states[n] for n in self._way(number)]
        labels = []
        for state, following in pairwise(states):
            labels.append(next(step.label for step in self._system.steps(state) if step.state == following))
        return Trace(tuple(labels), states[-1])
