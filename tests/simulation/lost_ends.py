"""Logs that lose their newest records, as by an unclean leader election: a topic from outside, and a table's
changelog. What is still in the log is handled once, and lanes go on by an operator's word alone.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from streams.engine.life.positions.review import Standing
from streams.model.choreography import Route, on
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from streams.ports import TP
from streams.testing.simulation.judge import rows
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run
from streams.testing.simulation.topics import Topics
from tests.keyed import Keyed

KEYS = "abcd"
#: Seconds until something is written after a cut: a lane notices a changelog that was cut when it writes.
THEN = 3.0


class Entered(Keyed, frozen=True, kw_only=True):
    """From outside. Its handler takes `slow` seconds, and others pass it by."""

    TOPIC: ClassVar[str] = "ledger.entered.v1"
    id: str
    slow: float = 0.0


class Booked(Keyed, frozen=True, kw_only=True):
    """Sent once for each entry. Its topic loses nothing: it shows what was handled."""

    TOPIC: ClassVar[str] = "ledger.booked.v1"
    SAME_KEY = True
    id: str


class Entries(Row, frozen=True):
    """The ids that were handled under a key, in order."""

    ids: tuple[str, ...] = ()


LEDGER, BOOKS = Table("ledger", Entries), Table("books", Entries)


@dataclass(frozen=True)
class LostEnds:
    """The part of a plan whose logs lose records."""

    def part(self, run: Run) -> LostEndsPart:
        """The part of a run."""
        return LostEndsPart(run)


def plan(seed: int) -> tuple[list[LostEnds], list[PlanStep]]:
    """In one run of four at most; by numbers of its own."""
    rng = Random(f"{seed} unclean")
    if rng.random() > 0.25:
        return [], []
    steps = []
    for number in range(rng.choice((10, 25))):
        entry = rng.choice(KEYS), f"e{number}", rng.choice((0.0, 0.0, 0.0, 2.0, 15.0))
        steps.append(PlanStep(rng.uniform(0, 40), "entry", entry))
        if rng.random() < 0.2:
            steps.append(PlanStep(steps[-1].at + rng.choice((0.5, 10.0, 30.0)), "entry", entry))
    for number, what in enumerate(rng.choice((("source",), ("source",), ("table",), ("source", "table")))):
        lost, grows = rng.choice((1, 2, 4, 10)), rng.choice((0, 1, 5, 12))
        cut = what, rng.choice(KEYS), f"after{number}", lost, grows, rng.choice((2.0, 20.0, 40.0))
        steps.append(PlanStep(rng.uniform(5, 42), "lose_end", cut))
    return [LostEnds()], steps


class LostEndsPart(Part):
    """The logs of a run that lose records, and the entries in them."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: Where logs were cut since an operator has gone on with them.
        self._cut: dict[TP, int] = {}
        #: Sources that have lost what the group stands behind: an operator has to hear of it.
        self._owed: set[TP] = set()
        #: Ids that the changelog still had after its last cut, and those that were booked when an operator
        #: went on with it.
        self._kept: dict[str, set[str]] = {}
        self._excused: dict[str, set[str]] = defaultdict(set)
        self._wrong: list[Finding] = []
        self._to_come = 0

    def routes(self) -> Sequence[Route]:
        """An entry is booked, and a booking is kept."""
        service, outside = Service("ledger"), self.run.outside

        @service.handler(sends=(Booked,), row=LEDGER)
        async def enter(event: Entered, row: Entries | None) -> Outcome:
            if event.slow:
                await outside.sleep(event.slow)
            return outcome(row=_and_now(row, event.id), send=[Booked(k=event.k, id=event.id)])

        @service.handler(row=BOOKS)
        def keep(event: Booked, row: Entries | None) -> Outcome:
            return outcome(row=_and_now(row, event.id))

        return [on(Entered, enter), on(Booked, keep)]

    def do_entry(self, key: str, own: str, slow: float) -> None:
        """A message of the outside."""
        self.run.post(Entered(k=key, id=own, slow=slow), own)

    def do_lose_end(self, what: str, key: str, own: str, lost: int, grows: int, attention: float) -> None:
        """A partition loses its last records; more come at once, and a moment later."""
        run = self.run
        topic = Entered.TOPIC if what == "source" else run.app.layout.changelog(LEDGER.name)
        tp = TP(topic, run.app.layout.partition_of(key.encode()))
        log = run.cluster.log(tp)
        at = max(log.start, log.end - lost)
        if what == "source" and run.cluster.groups.get(run.app.layout.app_id, {}).get(tp, 0) > at:
            self._owed.add(tp)
        run.note("loses", topic=topic, partition=tp.partition, at=at, end=log.end)
        self._cut[tp] = min(at, self._cut.get(tp, at))
        run.cluster.cut(tp, at)
        if what == "table":
            self._kept |= self._of(tp.partition, rows(run, LEDGER.name))
        for number in range(grows):
            self.do_entry(key, f"{own}-{number}", 0.0)
        self._to_come += 1
        run.later(THEN, self._then, key, f"{own}-then")
        next(part for part in run.beside if isinstance(part, Topics)).watch(attention)

    def _then(self, key: str, own: str) -> None:
        self._to_come -= 1
        self.do_entry(key, own, 0.0)

    def _of(self, partition: int, found: dict[tuple[str, str], bytes]) -> dict[str, set[str]]:
        """The ids of each key of a partition in rows."""
        layout = self.run.app.layout
        return {
            key: set(_ids(found.get((key, ""))))
            for key in KEYS
            if layout.partition_of(key.encode()) == partition
        }

    def accepted(self, topic: str, standings: Sequence[Standing]) -> None:
        """An operator goes on with what is there, and was told what is gone."""
        changelog = self.run.app.layout.changelog(LEDGER.name)
        if topic not in (Entered.TOPIC, changelog):
            return
        for each in standings:
            tp = TP(topic, each.partition)
            if (at := self._cut.pop(tp, None)) is None or (topic == Entered.TOPIC and at != each.cut):
                said = f"{tp} is said to have lost what it had from {each.cut} to {each.had}, not from {at}"
                self._wrong.append(Finding("what a log has lost is said", said))
            self._owed.discard(tp)
            if topic == changelog:
                for key, ids in self._booked().items():
                    if self.run.app.layout.partition_of(key.encode()) == each.partition:
                        self._excused[key] |= set(ids)

    def missing(self) -> list[str]:
        """Messages that are still to come."""
        return ["something is written after a cut"] if self._to_come else []

    def judge(self) -> list[Finding]:
        """Each entry that is in its log takes effect once; what a log has lost is said."""
        return [*self._wrong, *self._judged()]

    def _judged(self) -> Iterator[Finding]:
        run, booked = self.run, self._booked()
        for tp in sorted(self._owed):
            yield Finding("what a log has lost is said", f"{tp} was cut, and no lane has stopped")
        there: dict[str, dict[str, None]] = defaultdict(dict)
        for record in run.cluster.visible(Entered.TOPIC):
            value = json.loads(record.value or b"")
            there[value["k"]].setdefault(value["id"])
        ledger, books = rows(run, LEDGER.name), rows(run, BOOKS.name)
        for key in KEYS:
            counted, ids = Counter(booked[key]), _ids(ledger.get((key, "")))
            if skipped := [each for each in there[key] if each not in counted]:
                yield Finding(
                    "a message in its log is not skipped", f"{key}: {skipped} of {list(there[key])}"
                )
            if twice := [each for each, number in counted.items() if number > 1]:
                yield Finding("a message takes effect once", f"{key}: {twice} of {booked[key]}")
            if _ids(books.get((key, ""))) != booked[key]:
                yield Finding("a message takes effect once", f"{key}: {books.get((key, ''))!r}")
            wanted = [
                each
                for each in booked[key]
                if each not in self._excused[key] or each in self._kept.get(key, ())
            ]
            if len(set(ids)) < len(ids) or [each for each in booked[key] if each in ids] != ids:
                yield Finding("a row has each effect once, in order", f"{key}: {ids} of {booked[key]}")
            if lacking := [each for each in wanted if each not in ids]:
                yield Finding("a row has what its log has", f"{key}: {lacking} of {wanted}, not in {ids}")

    def _booked(self) -> dict[str, list[str]]:
        """The ids that were handled, by key, in order."""
        found: dict[str, list[str]] = defaultdict(list)
        for record in self.run.cluster.visible(Booked.TOPIC):
            value = json.loads(record.value or b"")
            found[value["k"]].append(value["id"])
        return found


def _and_now(row: Entries | None, own: str) -> Entries:
    return Entries((*(row or Entries()).ids, own))


def _ids(data: bytes | None) -> list[str]:
    return [] if data is None else json.loads(data)["ids"]
