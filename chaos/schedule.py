"""What is to happen in a run, and when: a pure function of the seed and the length.

Each kind of fault is a card; a shuffled deck is dealt until the time is used up, and then shuffled again.
Some cards are dealt in pairs, so that a worker dies while a broker is down, or another one comes meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from chaos.stalls import AFTER

WORKERS = 3
#: Slots that the schedule uses: a fourth worker may be added.
SLOTS = 4
BROKERS = 3
RECOVERING = "recovering"
POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", RECOVERING)
#: Times in seconds: until the first fault, and before the end of the load for the last one to heal.
FIRST_AFTER = 5.0
LAST_HEALS = 15.0


class Kind(StrEnum):
    """What is done."""

    KILL_WORKER = "kill_worker"
    KILL_AT_POINT = "kill_at_point"
    FREEZE_WORKER = "freeze_worker"
    FREEZE_AT_POINT = "freeze_at_point"
    KILL_BROKER = "kill_broker"
    RESTART_BROKER = "restart_broker"
    PAUSE_BROKER = "pause_broker"
    KILL_COORDINATOR = "kill_coordinator"
    ROLLING_RESTART = "rolling_restart"
    ROLLING_DEPLOY = "rolling_deploy"
    ADD_WORKER = "add_worker"
    REMOVE_WORKER = "remove_worker"
    NETWORK_CUT = "network_cut"
    NETWORK_BLACKHOLE = "network_blackhole"
    NETWORK_DELAY = "network_delay"
    GATEWAY_DOWN = "gateway_down"
    GATEWAY_SLOW = "gateway_slow"
    GATEWAY_LOSES_ANSWERS = "gateway_loses_answers"
    HANDLERS_FAIL = "handlers_fail"


class After(StrEnum):
    """What follows the end of a killed worker."""

    SAME = "the same directory"
    EMPTIED = "an emptied directory"
    NEVER = "never"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fault to come.

    Attributes:
        at: seconds after the load has begun, at the earliest: a fault that does not stand `beside` the one
            before waits until that one has healed.
        calm: how long nothing happens before it, in seconds, so that the fault before can be judged alone.
        beside: it begins while the fault before is under way.
        slot: the worker it hits or makes.
        broker: the broker it hits.
        lane: the lane whose transactions' coordinator it hits; None: the group's.
        after: what follows a kill.
        point: where in the commit protocol the worker ends or freezes, at its `nth` reach.
        seconds: how long it lasts, where that is ours to say.
        delay: by how much the network or the gateway is slower, in seconds.
        rate: how often a handler fails, from 0 to 1.
    """

    at: float
    kind: Kind
    calm: float = 0.0
    beside: bool = False
    slot: int | None = None
    broker: int | None = None
    lane: int | None = None
    after: After = After.SAME
    point: str = ""
    nth: int = 0
    seconds: float = 0.0
    delay: float = 0.0
    rate: float = 0.0


_OF_BROKERS = {Kind.KILL_BROKER, Kind.RESTART_BROKER, Kind.PAUSE_BROKER, Kind.KILL_COORDINATOR}
_OF_EDGES = {
    Kind.NETWORK_DELAY,
    Kind.GATEWAY_DOWN,
    Kind.GATEWAY_SLOW,
    Kind.GATEWAY_LOSES_ANSWERS,
    Kind.HANDLERS_FAIL,
}
_OF_WORKERS = set(Kind) - _OF_BROKERS - _OF_EDGES

#: About how long each takes until it has healed, in seconds: what the deck is dealt by.
_TAKES = {
    Kind.KILL_WORKER: 9,
    Kind.KILL_AT_POINT: 11,
    Kind.FREEZE_WORKER: 17,
    Kind.FREEZE_AT_POINT: 19,
    Kind.KILL_BROKER: 14,
    Kind.RESTART_BROKER: 12,
    Kind.PAUSE_BROKER: 25,
    Kind.KILL_COORDINATOR: 14,
    Kind.ROLLING_RESTART: 16,
    Kind.ROLLING_DEPLOY: 18,
    Kind.ADD_WORKER: 6,
    Kind.REMOVE_WORKER: 10,
    Kind.NETWORK_CUT: 16,
    Kind.NETWORK_BLACKHOLE: 16,
    Kind.NETWORK_DELAY: 9,
    Kind.GATEWAY_DOWN: 9,
    Kind.GATEWAY_SLOW: 9,
    Kind.GATEWAY_LOSES_ANSWERS: 9,
    Kind.HANDLERS_FAIL: 9,
}
_LASTS: dict[Kind, tuple[float, float]] = {
    Kind.FREEZE_WORKER: (9.0, 12.0),
    Kind.FREEZE_AT_POINT: (9.0, 12.0),
    Kind.PAUSE_BROKER: (20.0, 20.0),
    Kind.NETWORK_CUT: (9.0, 12.0),
    Kind.NETWORK_BLACKHOLE: (9.0, 12.0),
    Kind.NETWORK_DELAY: (6.0, 10.0),
    Kind.GATEWAY_DOWN: (4.0, 8.0),
    Kind.GATEWAY_SLOW: (5.0, 8.0),
    Kind.GATEWAY_LOSES_ANSWERS: (3.0, 6.0),
    Kind.HANDLERS_FAIL: (4.0, 8.0),
}
#: How often handlers fail while they do.
_RATES = {Kind.HANDLERS_FAIL: (0.05, 0.3)}
_DELAYS = {Kind.NETWORK_DELAY: (0.05, 0.2), Kind.GATEWAY_SLOW: (0.2, 0.6)}
#: How long lanes stand still after these, alone, is judged: what is laid to a fault ends this long after it.
_TIMED = {Kind.KILL_WORKER, Kind.ROLLING_RESTART}
_CALM_AFTER_TIMED = AFTER + 1.0
_TOGETHER = 0.55  # how often a card is dealt with another one beside it


def schedule(seed: int, seconds: float) -> list[Planned]:
    """The faults of a run whose load lasts so many seconds; the same for the same seed and length."""
    dealer = _Dealer(random.Random(seed), _dealt_first(seed))
    at, calm = FIRST_AFTER, 0.0
    planned: list[Planned] = []
    while True:
        scene, takes = dealer.scene(at, calm)
        if at + takes > seconds - LAST_HEALS and planned:
            return planned
        planned += scene
        timed = len(scene) == 1 and scene[0].kind in _TIMED
        calm = _CALM_AFTER_TIMED if timed else dealer.chance.uniform(1.5, 2.5)
        at += takes + calm


def _dealt_first(seed: int) -> list[Kind]:
    """Three kinds that lie on top, others for each of the next seeds: ten in a row leave no kind out."""
    kinds = list(Kind)
    return [kinds[(seed + step) % len(kinds)] for step in (0, 6, 12)]


class _Dealer:
    """Deals scenes: a fault, or a fault and another one beside it. Knows which slots have a worker."""

    def __init__(self, chance: random.Random, first: Sequence[Kind]) -> None:
        self.chance = chance
        self._first = list(first)
        self._slots = set(range(WORKERS))
        self._deployed = False
        self._points: list[str] = []
        self._afters: list[After] = []
        self._deck: list[Kind] = []

    def scene(self, at: float, calm: float) -> tuple[list[Planned], float]:
        """What is dealt next, and about how long it takes."""
        first = self._plan(at, self._next(), calm=calm)
        if self.chance.random() > _TOGETHER:
            return [first], _TAKES[first.kind]
        second = self._companion(first)
        if second is None:
            return [first], _TAKES[first.kind]
        later = self.chance.uniform(0.5, 3.0)
        beside = self._plan(round(at + later, 1), second, beside=first)
        return [first, beside], max(_TAKES[first.kind], later + _TAKES[second]) + 3

    def _next(self) -> Kind:
        if len(self._slots) < WORKERS:  # with two workers left, the next thing is a third one
            return self._take(Kind.ADD_WORKER) or Kind.ADD_WORKER
        return next(kind for kind in self._cards() if self._possible(kind) and self._take(kind))

    def _cards(self) -> Iterator[Kind]:
        yield from list(self._deck)
        deck = [kind for kind in Kind if kind is not Kind.ROLLING_DEPLOY or not self._deployed]
        more = [Kind.KILL_WORKER, Kind.KILL_WORKER, Kind.KILL_AT_POINT, Kind.KILL_AT_POINT]
        deck += more
        self.chance.shuffle(deck)
        self.chance.shuffle(self._first)
        for kind in self._first:
            deck.remove(kind)
            deck.insert(0, kind)
        self._first.clear()
        self._deck += deck
        yield from list(self._deck)

    def _take(self, kind: Kind) -> Kind | None:
        if kind not in self._deck:
            return None
        self._deck.remove(kind)
        return kind

    def _possible(self, kind: Kind) -> bool:
        if kind is Kind.ADD_WORKER:
            return len(self._slots) < SLOTS
        return kind is not Kind.REMOVE_WORKER or len(self._slots) >= WORKERS

    def _companion(self, first: Planned) -> Kind | None:
        """A card that may lie beside the first, and tells more there than alone; None: there is none."""
        kinds = [kind for kind in self._deck if self._possible(kind) and _go_together(first, kind)]
        return self._take(self.chance.choice(kinds)) if kinds else None

    def _plan(self, at: float, kind: Kind, *, calm: float = 0.0, beside: Planned | None = None) -> Planned:
        low, high = _LASTS.get(kind, (0.0, 0.0))
        slower, slowest = _DELAYS.get(kind, (0.0, 0.0))
        point = self._point(kind)
        after = self._after(kind, alone=beside is None)
        if kind is Kind.ROLLING_DEPLOY:
            self._deployed = True
        return Planned(
            at=round(at, 1),
            kind=kind,
            calm=round(calm, 1),
            beside=beside is not None,
            slot=self._slot(kind, after, beside),
            broker=self.chance.randint(1, BROKERS) if kind in _OF_BROKERS - {Kind.KILL_COORDINATOR} else None,
            lane=self.chance.choice((None, 0, 1)) if kind is Kind.KILL_COORDINATOR else None,
            after=after,
            point=point,
            nth=self.chance.randint(1, 2 if point == RECOVERING else 30) if point else 0,
            seconds=round(self.chance.uniform(low, high), 1),
            delay=round(self.chance.uniform(slower, slowest), 2),
            rate=round(self.chance.uniform(*_RATES[kind]), 2) if kind in _RATES else 0.0,
        )

    def _point(self, kind: Kind) -> str:
        if kind is Kind.FREEZE_AT_POINT:
            return self.chance.choice(POINTS[:-1])
        if kind is not Kind.KILL_AT_POINT:
            return ""
        if not self._points:
            self._points = self.chance.sample(POINTS, len(POINTS))
        return self._points.pop()

    def _after(self, kind: Kind, *, alone: bool) -> After:
        if kind is not Kind.KILL_WORKER:
            return After.SAME
        if not self._afters:
            self._afters = self.chance.sample(list(After), len(After))
        after = self._afters.pop()
        # Beside another fault, and with few workers, a killed one is needed back.
        return after if after is not After.NEVER or (alone and len(self._slots) >= WORKERS) else After.SAME

    def _slot(self, kind: Kind, after: After, beside: Planned | None) -> int | None:
        if kind is Kind.ADD_WORKER:
            slot = min(set(range(SLOTS)) - self._slots)
            self._slots.add(slot)
            return slot
        if kind not in _OF_WORKERS | {Kind.NETWORK_DELAY} or kind in (
            Kind.ROLLING_RESTART,
            Kind.ROLLING_DEPLOY,
        ):
            return None
        others = self._slots - {beside.slot if beside is not None else None}
        slot = self.chance.choice(sorted(others))
        if kind is Kind.REMOVE_WORKER or after is After.NEVER:
            self._slots.remove(slot)
        return slot


def _go_together(first: Planned, second: Kind) -> bool:
    """Never two brokers, nor two workers at once, but for one that comes or goes while another recovers."""
    if first.kind in _OF_BROKERS:
        return second not in _OF_BROKERS
    if first.kind in _OF_EDGES:
        return second not in _OF_EDGES
    recovers = first.kind in (Kind.KILL_WORKER, Kind.KILL_AT_POINT) and first.after is not After.NEVER
    if recovers and second in (Kind.ADD_WORKER, Kind.REMOVE_WORKER):
        return True
    return second not in _OF_WORKERS
