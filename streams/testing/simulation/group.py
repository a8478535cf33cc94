"""A simulated consumer group. Members join, go silent and come back; the real assignment policy decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from streams.model.policy.assignment import Assignment, Member, assign

#: Session timeout: seconds of silence after which the group removes a member.
SESSION = 10.0
#: Seconds between checks for silent members.
_LOOK = 1.0


class Joins(Protocol):
    """A worker as the group sees it."""

    @property
    def name(self) -> str:
        """Its static member id."""

    @property
    def answers(self) -> bool:
        """Whether it heartbeats."""

    def claims(self) -> Member:
        """The description of itself that a member sends when it joins."""

    def unsure(self) -> None:
        """Called when a rebalance begins."""

    def assigned(self, given: Assignment, generation: int) -> None:
        """Called with the member's assignment after a rebalance."""

    def displaced(self) -> bool:
        """Called when another process has joined with the same identity. Returns False if the worker cannot
        be reached yet.
        """


@dataclass
class _Place:
    worker: Joins
    heard: float
    given: Assignment | None = None
    sure: bool = False


@dataclass
class Group:
    """Assigns lanes to workers. A static member that returns in time gets its previous assignment."""

    rng: Random
    standbys: int
    common: Sequence[str]
    note: Callable[..., None]
    generation: int = 0
    _places: dict[str, _Place] = field(default_factory=dict)
    _displaced: list[Joins] = field(default_factory=list)
    _rebalancing: bool = False
    _wanted: bool = False

    def join(self, worker: Joins) -> None:
        """Add a worker that has started, or that noticed that it is no longer a member."""
        now = asyncio.get_running_loop().time()
        place = self._places.get(worker.name)
        if place is not None and place.worker is not worker:
            self._displaced.append(place.worker)
        if place is not None and place.given is not None and not self._rebalancing:
            place.worker, place.heard = worker, now
            self._tell(worker, place.given, self.generation)
            return
        self._places[worker.name] = _Place(worker, now)
        self.rebalance()

    def rebalance(self) -> None:
        """Request a new assignment at the next check."""
        self._wanted = True

    def is_settled(self, worker: Joins) -> bool:
        """Whether a worker is a member and has received the last assignment."""
        place = self._places.get(worker.name)
        if place is None or place.worker is not worker or place.given is None:
            return False
        return not (self._wanted or self._rebalancing) and worker.claims().generation == self.generation

    async def run(self) -> None:
        """Check for silent members, and assign again when a member has come or gone. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK)
            now = loop.time()
            self._displaced = [worker for worker in self._displaced if not worker.displaced()]
            for name, place in list(self._places.items()):
                if place.worker.answers:
                    if now - place.heard > SESSION:  # it was away for too long, and learns so now
                        self._places[name] = _Place(place.worker, now)
                        self.rebalance()
                    place.heard = now
                    if place.given is None:
                        self.rebalance()
                elif now - place.heard > SESSION and place.given is not None:
                    place.given = None
                    self.rebalance()
            if self._wanted:
                await self._decide()

    async def _decide(self) -> None:
        self._wanted, self._rebalancing = False, True
        joined = [place for place in self._places.values() if place.worker.answers]
        for place in joined:
            place.worker.unsure()
        await asyncio.sleep(self.rng.choice((0.05, 0.5, 3.0)))
        self._rebalancing = False
        joined = [place for place in joined if place.worker.answers]
        for place in self._places.values():
            place.given = None
        if not joined:
            return
        self.generation += 1
        members = {place.worker.name: place.worker.claims() for place in joined}
        decided = assign(members, self.standbys, self.common)
        self.note("decided", generation=self.generation, active={n: a.active for n, a in decided.items()})
        for place in joined:
            place.given = decided[place.worker.name]
            self._tell(place.worker, place.given, self.generation)

    def _tell(self, worker: Joins, given: Assignment, generation: int) -> None:
        self._tell_in(self.rng.choice((0.0, 0.01, 0.2)), worker, given, generation)

    def _tell_in(self, seconds: float, worker: Joins, given: Assignment, generation: int) -> None:
        asyncio.get_running_loop().call_later(seconds, self._told, worker, given, generation)

    def _told(self, worker: Joins, given: Assignment, generation: int) -> None:
        place = self._places.get(worker.name)
        if generation != self.generation or place is None or place.worker is not worker:
            return
        if worker.answers:
            worker.assigned(given, generation)
        else:  # tried again until the worker answers
            self._tell_in(_LOOK, worker, given, generation)
