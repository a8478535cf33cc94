"""Transfers: sagas that move money, what is done to them, and what has to hold: each ends or says for whom it
waits, no step takes effect twice, and no money is made or lost.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec

from streams.model.choreography import Route
from streams.saga.definition import Saga
from streams.saga.messages import RepairOperation, saga_id
from streams.saga.state import SagaRow
from streams.saga.views import orchestrated
from streams.testing.simulation.deploys import HOW
from streams.testing.simulation.judge import in_log, letters_in, rows
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run
from tests.simulation.saga_checks import saga_checks
from tests.simulation.sagas import (
    ACCOUNTS,
    ENDS,
    NAME,
    START,
    TRANSFERS,
    Account,
    Features,
    Gateway,
    Told,
    definition,
)
from tests.simulation.sagas import family as family_of
from tests.simulation.sagas import transfers as lines_of

#: What is done to accounts, and what undoes it.
UNDONE_BY = {"reserve": "release", "charge": "refund", "credit": "debit"}
STEPS = ("reserve", "release", "hold", "drop", "review", "charge", "refund", "credit", "debit")
TROUBLES = ("refuse", "poison", "curable", "flaky", "1", "3", "slow", "unanswered", "mute")
IDS, NAMES = ("t0", "t1", "t2", "t3", "t4"), ("ann", "bob", "cat")


@dataclass(frozen=True)
class Transfers:
    """What a plan has of transfers.

    Attributes:
        has, version: of new sagas.
        before: other definitions that workers have, with their versions.
    """

    has: Features
    version: int = 1
    before: tuple[tuple[Features, int], ...] = ()

    def part(self, run: Run) -> TransfersPart:
        """The part of a run."""
        return TransfersPart(run, self)

    def definitions(self) -> list[Saga]:
        """The definitions, the one of new sagas first."""
        found: dict[tuple[int, str], Saga] = {}
        for has, version in ((self.has, self.version), *self.before):
            made = definition(has, version)
            found.setdefault((version, made.digest), made)
        return list(found.values())


def _features(rng: Random) -> Features:
    return Features(
        same_key=rng.random() < 0.4,
        local=rng.random() < 0.3,
        hold=rng.choice(("", "alone", "together")),
        review=rng.random() < 0.4,
        pivot=rng.choice(("charge", "charge", "refund", "none")),
        timeout=rng.choice((2.0, 5.0, 20.0)),
        retry=rng.choice((0, 0, 1, 2)),
    )


def plan(rng: Random) -> tuple[Transfers, list[PlanStep]]:
    """Transfers of a seed, and what operators do."""
    has, steps = _features(rng), []
    ids = IDS[: rng.choice((1, 2, 5))]
    for own in ids:
        source, target = (own, own) if has.same_key else rng.sample(NAMES, 2)
        troubles = {}
        if rng.random() < 0.5:
            troubles = {rng.choice(STEPS): rng.choice(TROUBLES) for _ in range(rng.choice((1, 1, 2)))}
        what = (own, source, target, rng.choice((10, 30, 60, 95)), troubles, own, rng.random() < 0.1)
        at = rng.uniform(0, 30)
        steps.append(PlanStep(at, "transfer", what))
        if rng.random() < 0.15:  # once more, or another one under the same key
            again = (*what[:3], rng.choice((what[3], 20)), troubles, rng.choice((own, f"{own}-again")), False)
            steps.append(PlanStep(at + rng.choice((0.0, 0.3, 20.0)), "transfer", again))
    for _ in range(rng.choice((0, 0, 1, 3))):
        asked = rng.choice(("cancel", "cancel", "retry", "retry", "retry", "skip", "done"))
        at = rng.choice((rng.uniform(0, 40), 61.0, 90.0))
        steps.append(PlanStep(at, "repair", (asked, rng.choice(ids), rng.random() < 0.3)))
    return Transfers(has), steps


def deploys(seed: int, has: Features) -> list[PlanStep]:
    """In half of the runs workers get another definition: under a new version beside the former one or
    without it, or under the same version; or the same one with other patience. Or they go back.
    """
    rng = Random(f"{seed} definitions")
    steps = [*_changed(Random(f"{seed} changed"), has), *_strays(Random(f"{seed} strays"))]
    steps += _strays(Random(f"{seed} too late"), "expired")
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        new = replace(_features(rng), same_key=has.same_key)
        shape = rng.choice((
            Transfers(new, 2, ((has, 1),)), Transfers(new, 2, ((has, 1),)), Transfers(new), Transfers(new, 2),
            Transfers(replace(has, timeout=new.timeout, retry=new.retry)),
        ))  # fmt: skip
        changes = tuple(vars(shape).items())
        what = changes, rng.choice(HOW), rng.choice((0.5, 4.0, 12.0))
        steps.append(PlanStep(rng.uniform(0.5, 35), "deploy", what))
        if rng.random() < 0.3:
            steps.append(PlanStep(steps[-1].at + rng.choice((3.0, 15.0)), "roll_back", what[1:]))
    return steps


def _changed(rng: Random, has: Features) -> list[PlanStep]:
    """In one run of three the steps are others under the same version, while sagas are under way."""
    if rng.random() > 0.3:
        return []
    new = replace(has, hold="" if has.hold else "alone", review=not has.review)
    what = tuple(vars(Transfers(new)).items()), rng.choice(HOW), 0.5
    return [PlanStep(rng.uniform(3, 30), "deploy", what)]


def _strays(rng: Random, kind: str = "stray") -> list[PlanStep]:
    """In one run of five a reply, or a command that has expired, comes for a saga that there is not."""
    return [PlanStep(rng.uniform(1, 30), kind, (f"nobody{rng.randrange(9)}",))] if rng.random() < 0.2 else []


class TransfersPart(Part):
    """The transfers of a run."""

    def __init__(self, run: Run, shape: Transfers) -> None:
        super().__init__(run)
        self._shapes = [shape]
        self._of = family_of(shape.has.same_key)
        self._gateway = Gateway(run.outside)
        self._by_hand: set[str] = set()
        self._repairs = 0
        self._strays = Counter[str]()

    def routes(self) -> Sequence[Route]:
        """The saga's and its participants'."""
        return lines_of(self._shapes[-1].definitions(), self._gateway)

    def resources(self) -> Mapping[str, Any]:
        """Sagas have deadlines."""
        return {"clock": self.run.here}

    def deployed(self, shape: Transfers) -> None:
        """Another version begins."""
        self._shapes.append(shape)

    def mend(self) -> bool:
        """Each saga finds the definition that it began with."""
        if len(self._shapes) == 1:
            return False
        before = tuple((shape.has, shape.version) for shape in self._shapes)
        self.deployed(Transfers(before[-1][0], 3, before))
        return True

    # -- steps ----------------------------------------------------------------------------------------

    def do_transfer(
        self,
        own: str,
        source: str,
        target: str,
        amount: int,
        troubles: dict[str, str],
        message_id: str,
        misrouted: bool,
    ) -> None:
        """Somebody wants a transfer."""
        wanted = self._of.wanted(id=own, source=source, target=target, amount=amount, troubles=troubles)
        self.run.post(wanted, message_id, away=misrouted)

    def do_repair(self, operation: RepairOperation, own: str, twice: bool) -> None:
        """An operator asks something of a saga, perhaps from two terminals."""
        row = self._rows().get(own)
        waits = orchestrated(row).waits_for if row is not None else ()
        if operation in ("skip", "done") and waits:
            self._by_hand.add(own)
        step = waits[0] if waits and operation != "cancel" else ""
        for _ in range(1 + twice):
            self._repairs += 1
            asked = {"saga_id": saga_id(NAME, own), "operation": operation, "step": step}
            repair = self._of.repair(**asked, who="ann", why="simulated")
            self.run.post(repair, f"repair-{self._repairs}", source="desk")

    def do_stray(self, own: str) -> None:
        """A participant answers a saga that there is not."""
        about = {"saga_id": saga_id(NAME, own), "step": "reserve", "command_id": "none"}
        self.run.post(self._of.reply(**about, outcome="success"), f"stray-{own}", source="accounts")
        self._strays[own] += 1

    def do_expired(self, own: str) -> None:
        """A saga that there is not asks for something, long too late. Its answer finds no saga."""
        about = {"saga_id": saga_id(NAME, own), "step": "reserve", "command_id": "none", "attempt": 1}
        self.run.post(
            self._of.reserve(**about, source=own, amount=10, expires=2.0), f"expired-{own}", source="sagas"
        )
        self._strays[own] += 1

    # -- what has to hold -----------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Sagas that have not begun, and those that neither ended nor say for whom they wait."""
        has = self._rows()
        left = [f"{own} has not begun" for own in in_log(self.run, self._of.wanted.TOPIC) if own not in has]
        for own, row in has.items():
            view = orchestrated(row)
            if not (view.ended or view.waits_for or self._is_mute(row)):
                left.append(f"saga {own} is {row.status}, and is to do {view.pending}")
        return left

    def judge(self) -> list[Finding]:
        """Each invariant of sagas, for each of them."""
        accounts = self._read(ACCOUNTS.name, Account)
        effects: dict[str, Counter[str]] = defaultdict(Counter)
        for account in accounts.values():
            for saga, what in account.entries:
                effects[saga][what] += 1
        found = [*self._money(accounts), *self._letters()]
        wanted = in_log(self.run, self._of.wanted.TOPIC)
        for own, row in self._rows().items():
            if own not in wanted:
                found.append(Finding("nothing comes from nowhere", f"saga {own}"))
            found += self._effects(own, row, effects.pop(row.saga_id, Counter()))
        found += [Finding("nothing comes from nowhere", f"effects of {saga}") for saga in effects]
        found += [*self._told(), *self._ignored()]
        timeout = min(shape.has.timeout for shape in self._shapes)
        return [*found, *saga_checks(self.run, self._of, self._rows(), timeout)]

    def _effects(self, own: str, row: SagaRow, had: Counter[str]) -> Iterator[Finding]:
        where = f"{row.saga_id} is {row.status}: {dict(had)}"
        if any(number > 1 for number in had.values()):
            yield Finding("a step takes effect once", where)
        if any(had[undo] > had[do] for do, undo in UNDONE_BY.items()):
            yield Finding("nothing is undone that was not done", where)
        if own in self._by_hand:
            return
        held = f"{row.saga_id}:hold" in self._gateway.held
        if row.status == "completed":
            if had != dict.fromkeys(UNDONE_BY, 1):
                yield Finding("a saga that completes does all", where)
            if held != any(each.name == "hold" and each.status == "completed" for each in row.steps):
                yield Finding("a saga that completes does all", f"{where}; held outside: {held}")
        if row.status == "compensated":
            if any(had[undo] != had[do] for do, undo in UNDONE_BY.items()):
                yield Finding("a compensated saga leaves nothing", where)
            if held:
                yield Finding("a compensated saga leaves nothing", f"{where}; held outside")

    def _money(self, accounts: Mapping[str, Account]) -> Iterator[Finding]:
        """No money is made or lost: what is on no account is on its way between two."""
        amounts = {row.saga_id: json.loads(row.start)["amount"] for row in self._rows().values()}
        total = 0
        for account in accounts.values():
            total += account.balance + sum(account.held.values())
            signs = {"charge": 1, "refund": -1, "credit": -1, "debit": 1}
            total += sum(signs.get(what, 0) * amounts.get(saga, 0) for saga, what in account.entries)
            # Without a pivot it is taken back after it was spent.
            if account.balance < 0 and all(each.has.pivot != "none" for each in self._shapes):
                yield Finding("no account is overdrawn", str(account))
        if total != START * len(accounts):
            yield Finding("money is conserved", f"{total} of {START * len(accounts)}: {accounts}")

    def _told(self) -> Iterator[Finding]:
        """Each transition is told once, and each end."""
        numbers = defaultdict(list)
        for record in self.run.cluster.visible(self._of.transition.TOPIC):
            said = json.loads(record.value or b"")
            if said["number"]:
                numbers[said["saga_id"]].append(said["number"])
        ends = self._read(ENDS.name, Told)
        for own, row in self._rows().items():
            if numbers[row.saga_id] != list(range(1, row.entries + 1)):
                yield Finding("each transition is told once", f"{row.saga_id}: {numbers[row.saga_id]}")
            wanted = {"completed": ("done",), "compensated": ("cancelled",)}.get(row.status, ())
            if (had := ends.get(own, Told()).ends) != wanted:
                yield Finding("each end is told once", f"{row.saga_id} is {row.status}: {had}")

    def _ignored(self) -> Iterator[Finding]:
        """Each reply that no saga takes is in the log, once."""
        log = self.run.cluster.visible(self._of.transition.TOPIC)
        entries = [json.loads(record.value or b"") for record in log]
        noted = Counter(each["saga_id"] for each in entries if not each["number"])
        for own in sorted(self._strays):
            if noted[saga_id(NAME, own)] != self._strays[own]:
                yield Finding("a reply without a saga is in the log", f"{own}: {noted}")

    def _letters(self) -> Iterator[Finding]:
        """Who cannot do a command tells the saga: nothing is a dead letter."""
        topics = {kind.TOPIC for kind in self._of}
        for letter in letters_in(self.run).values():
            if letter.topic in topics:
                yield Finding("no message of a saga is given up", f"{letter.topic}: {letter.handler}")

    def _is_mute(self, row: SagaRow) -> bool:
        """It waits for a review that nobody gives; its view says so."""
        troubles = json.loads(row.start)["troubles"]
        step = row.find("review")
        mute = troubles.get("review") == "mute" and step is not None and step.status == "in_progress"
        return mute and "review" in orchestrated(row).pending

    def _rows(self) -> dict[str, SagaRow]:
        return self._read(TRANSFERS.name, SagaRow)

    def _read(self, table: str, kind: type[Any]) -> dict[str, Any]:
        found = rows(self.run, table).items()
        return {key: msgspec.json.decode(data, type=kind) for (key, _), data in found}
