"""What is to happen in a run, and when: a pure function of the seed and the length.

Each kind of fault is a card; a shuffled deck is dealt until the time is used up, and then shuffled again.
Some cards are dealt in pairs, so that a worker dies while a broker is down, or another one comes meanwhile.
Some are dealt once at most: the deploy, what only a long run has time for, and, in a short one, one of those
that take long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from chaos.judges.stalls import AFTER
from chaos.rig.kinds import (
    ALONE,
    BROKERS,
    COSTS_ATTEMPTS,
    OF_ALL,
    OF_BROKERS,
    OF_DATABASE,
    OF_EDGES,
    OF_WORKERS,
    POINTS,
    RARE,
    RECOVERING,
    SLOTS,
    WAYS_OF,
    WORKERS,
    AfterKill,
    FaultKind,
    Planned,
)

#: Times in seconds: until the first fault, and before the end of the load for the last one to heal.
FIRST_AFTER = 5.0
LAST_HEALS = 15.0
#: How long lanes stand still after these, alone, is judged: what is laid to a fault ends this long after it.
_TIMED = {FaultKind.KILL_WORKER, FaultKind.ROLLING_RESTART}
_CALM_AFTER_TIMED = AFTER + 1.0
#: Between two scenes that cost attempts, lest a message that has spent all but its last in the one spend
#: that in the other, and be given up: the longest delay of a retry, which the driver sets, and a little.
LONGEST_DELAY = 10.0
_CALM_BETWEEN = LONGEST_DELAY + 2.0
#: From how long a run on there is an outage of all workers, in seconds.
_WITH_OUTAGE = 600.0
_ONCE = {FaultKind.ROLLING_DEPLOY, FaultKind.OUTAGE, *RARE}
_TOGETHER = 0.55  # how often a card is dealt with another one beside it


def schedule(seed: int, seconds: float) -> list[Planned]:
    """The faults of a run whose load lasts so many seconds; the same for the same seed and length."""
    rare = RARE[seed % len(RARE)]
    once = _ONCE if seconds >= _WITH_OUTAGE else {FaultKind.ROLLING_DEPLOY, rare}
    dealer = _Dealer(random.Random(seed), [rare, *_dealt_first(seed)], set(once))
    at, calm = FIRST_AFTER, 0.0
    planned: list[Planned] = []
    costly = False
    while True:
        scene, takes = dealer.scene(at, calm)
        was_costly, costly = costly, any(each.kind in COSTS_ATTEMPTS for each in scene)
        if was_costly and costly and calm < _CALM_BETWEEN:
            scene, at = _put_off(scene, calm=_CALM_BETWEEN), at + _CALM_BETWEEN - calm
        if at + takes > seconds - LAST_HEALS and planned:
            return planned
        planned += scene
        timed = len(scene) == 1 and scene[0].kind in _TIMED
        calm = _CALM_AFTER_TIMED if timed else dealer.chance.uniform(1.5, 2.5)
        at += takes + calm


def _put_off(scene: Sequence[Planned], *, calm: float) -> list[Planned]:
    """The same, with so much calm before it."""
    later = calm - scene[0].calm
    put_off = [msgspec.structs.replace(each, at=round(each.at + later, 1)) for each in scene]
    return [msgspec.structs.replace(put_off[0], calm=calm), *put_off[1:]]


def _dealt_first(seed: int) -> list[FaultKind]:
    """Four kinds that lie on top, others for each of the next seeds: ten in a row leave no kind out."""
    kinds = [kind for kind in FaultKind if kind is not FaultKind.OUTAGE and kind not in RARE]
    apart = -(-len(kinds) // 4)
    return [kinds[(seed + step * apart) % len(kinds)] for step in range(4)]


class _Dealer:
    """Deals scenes: a fault, or a fault and another one beside it. Knows which slots have a worker."""

    def __init__(self, chance: random.Random, first: Sequence[FaultKind], once: set[FaultKind]) -> None:
        self.chance = chance
        self._first = list(first)
        self._slots = set(range(WORKERS))
        self._once = once  # what is to be dealt no more than once, and was not
        self._points: list[str] = []
        self._afters: list[AfterKill] = []
        self._deck: list[FaultKind] = []

    def scene(self, at: float, calm: float) -> tuple[list[Planned], float]:
        """What is dealt next, and about how long it takes."""
        first = self._plan(at, self._next(), calm=calm)
        if self.chance.random() > _TOGETHER:
            return [first], first.kind.takes
        second = self._companion(first)
        if second is None:
            return [first], first.kind.takes
        later = self.chance.uniform(0.5, 3.0)
        beside = self._plan(round(at + later, 1), second, beside=first)
        return [first, beside], max(first.kind.takes, later + second.takes) + 3

    def _next(self) -> FaultKind:
        if len(self._slots) < WORKERS:  # with two workers left, the next thing is a third one
            return self._take(FaultKind.ADD_WORKER) or FaultKind.ADD_WORKER
        return next(kind for kind in self._cards() if self._possible(kind) and self._take(kind))

    def _cards(self) -> Iterator[FaultKind]:
        yield from list(self._deck)
        deck = [kind for kind in FaultKind if kind not in _ONCE or kind in self._once]
        more = [
            FaultKind.KILL_WORKER,
            FaultKind.KILL_WORKER,
            FaultKind.KILL_AT_POINT,
            FaultKind.KILL_AT_POINT,
        ]
        deck += more
        self.chance.shuffle(deck)
        self.chance.shuffle(self._first)
        for kind in self._first:
            deck.remove(kind)
            deck.insert(0, kind)
        self._first.clear()
        self._deck += deck
        yield from list(self._deck)

    def _take(self, kind: FaultKind) -> FaultKind | None:
        if kind not in self._deck:
            return None
        self._deck.remove(kind)
        return kind

    def _possible(self, kind: FaultKind) -> bool:
        if kind is FaultKind.ADD_WORKER:
            return len(self._slots) < SLOTS
        return kind is not FaultKind.REMOVE_WORKER or len(self._slots) >= WORKERS

    def _companion(self, first: Planned) -> FaultKind | None:
        """A card that may lie beside the first, and tells more there than alone; None: there is none."""
        kinds = [kind for kind in self._deck if self._possible(kind) and _go_together(first, kind)]
        return self._take(self.chance.choice(kinds)) if kinds else None

    def _plan(
        self, at: float, kind: FaultKind, *, calm: float = 0.0, beside: Planned | None = None
    ) -> Planned:
        point = self._point(kind)
        after = self._after(kind, alone=beside is None)
        self._once.discard(kind)
        return Planned(
            at=round(at, 1),
            kind=kind,
            calm=round(calm, 1),
            beside=beside is not None,
            slot=self._slot(kind, after, beside),
            broker=self.chance.randint(1, BROKERS)
            if kind in OF_BROKERS - {FaultKind.KILL_COORDINATOR}
            else None,
            lane=self.chance.choice((None, 0, 1)) if kind is FaultKind.KILL_COORDINATOR else None,
            after=after,
            point=point,
            nth=self.chance.randint(1, 2 if point == RECOVERING else 30) if point else 0,
            seconds=round(self.chance.uniform(*kind.lasts), 1),
            delay=round(self.chance.uniform(*kind.delay), 2),
            which=self.chance.randrange(WAYS_OF[kind]) if kind in WAYS_OF else 0,
            rate=round(self.chance.uniform(*kind.rate), 2) if any(kind.rate) else 0.0,
        )

    def _point(self, kind: FaultKind) -> str:
        if kind in (FaultKind.FREEZE_AT_POINT, FaultKind.CHANGE_LANES):
            return self.chance.choice(POINTS[:-1])
        if kind is not FaultKind.KILL_AT_POINT:
            return ""
        if not self._points:
            self._points = self.chance.sample(POINTS, len(POINTS))
        return self._points.pop()

    def _after(self, kind: FaultKind, *, alone: bool) -> AfterKill:
        if kind is not FaultKind.KILL_WORKER:
            return AfterKill.SAME
        if not self._afters:
            self._afters = self.chance.sample(list(AfterKill), len(AfterKill))
        after = self._afters.pop()
        if after is AfterKill.NEVER and not (alone and len(self._slots) >= WORKERS):
            # Beside another fault, and with few workers, a killed one is needed back: another time.
            self._afters.insert(0, AfterKill.NEVER)
            return AfterKill.SAME
        return after

    def _slot(self, kind: FaultKind, after: AfterKill, beside: Planned | None) -> int | None:
        if kind is FaultKind.ADD_WORKER:
            slot = min(set(range(SLOTS)) - self._slots)
            self._slots.add(slot)
            return slot
        if kind not in OF_WORKERS | {FaultKind.NETWORK_DELAY} or kind in OF_ALL:
            return None
        others = self._slots - {beside.slot if beside is not None else None}
        slot = self.chance.choice(sorted(others))
        if kind is FaultKind.REMOVE_WORKER or after is AfterKill.NEVER:
            self._slots.remove(slot)
        return slot


def _go_together(first: Planned, second: FaultKind) -> bool:
    """Never two brokers, nor two of the database edge, nor two workers at once, but for one that comes or
    goes while another recovers.
    """
    if ALONE & {first.kind, second}:
        return False
    if first.kind in OF_BROKERS:
        return second not in OF_BROKERS
    if first.kind in OF_EDGES:
        return second not in OF_EDGES
    if first.kind in OF_DATABASE:
        return second not in OF_DATABASE
    recovers = (
        first.kind in (FaultKind.KILL_WORKER, FaultKind.KILL_AT_POINT) and first.after is not AfterKill.NEVER
    )
    if recovers and second in (FaultKind.ADD_WORKER, FaultKind.REMOVE_WORKER):
        return True
    return second not in OF_WORKERS
