"""A simulated consumer group: members join, fall silent and come back; the real policy decides for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from streams.model.policy.assignment import Assignment, Member, assign

#: Silence after which the group does without a member, in seconds.
SESSION = 10.0
#: Between looks at who has fallen silent, in seconds.
_LOOK = 1.0


class Joins(Protocol):
    """A worker as the group knows it."""

    @property
    def name(self) -> str:
        """Its static member id."""

    @property
    def answers(self) -> bool:
        """Whether it heartbeats."""

    def claims(self) -> Member:
        """The member's own description, which it sends when it joins."""

    def unsure(self) -> None:
        """It hears that a rebalance has begun."""

    def assigned(self, given: Assignment, generation: int) -> None:
        """It hears what the group has decided."""

    def displaced(self) -> bool:
        """Another process has joined with its identity; False: it cannot hear that yet."""


@dataclass
class _Place:
    worker: Joins
    heard: float
    given: Assignment | None = None
    sure: bool = False


@dataclass
class Group:
    """Decides who owns which lane. A static member that comes back soon is given what it had."""

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
        """A worker has started, or has woken up and finds that it is no member."""
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
        """Decide anew, soon."""
        self._wanted = True

    def is_settled(self, worker: Joins) -> bool:
        """Whether a worker is a member, and has heard what was decided last."""
        place = self._places.get(worker.name)
        if place is None or place.worker is not worker or place.given is None:
            return False
        return not (self._wanted or self._rebalancing) and worker.claims().generation == self.generation

    async def run(self) -> None:
        """Look who is silent, and decide when somebody has come or gone; until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK)
            now = loop.time()
            self._displaced = [worker for worker in self._displaced if not worker.displaced()]
            for name, place in list(self._places.items()):
                if place.worker.answers:
                    if now - place.heard > SESSION:  # it was away for too long, and hears so now
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
        else:  # it asks again when it can
            self._tell_in(_LOOK, worker, given, generation)
