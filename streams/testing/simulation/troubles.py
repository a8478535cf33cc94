"""Faults of more than one machine, of identities and disks, and at the requests of an opening."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from streams.errors import TransactionFailed
from streams.model.policy.assignment import Assignment, Member
from streams.testing.broker import Fault
from streams.testing.simulation.faults import POINTS
from streams.testing.simulation.machines import Machine
from streams.testing.simulation.plan import Finding
from streams.testing.simulation.run import Part, Run
from streams.testing.simulation.workers import Points

#: Requests that a lane makes while it opens, in their order.
OPENING = (
    "reader", "start", "identity", "committed", "begin_offsets", "end_offsets", "recovering"
)  # fmt: skip
#: Answers that may be lost several times in a row.
UNANSWERED = ("UNAVAILABLE", "START_FAILED", "COMMIT_DONE", "COMMIT_LOST")


def kinds(rng: Random, machines: int) -> Mapping[str, Callable[[], tuple[Any, ...]]]:
    """By the kind of a fault what makes the rest of it from a seed."""

    def machine() -> int:
        return rng.randrange(machines)

    return {
        "kill_opening": lambda: (machine(), rng.choice(OPENING), rng.randint(1, 4), rng.choice((0, 1, 5))),
        "freeze_opening": lambda: (machine(), rng.choice(OPENING), rng.randint(1, 4), rng.choice((1, 20))),
        "kill_all": lambda: (rng.choice((0, 0, 3)), rng.choice((0.5, 4.0, 20.0))),
        "storm": lambda: (rng.choice((3, 8, 20)), rng.choice((0.1, 1.5, 4.0))),
        "away": lambda: (rng.choice(("silent", "refused")), rng.choice((1.0, 12.0, 60.0))),
        "slow": lambda: (machine(), rng.choice((0.5, 4.0, 9.0)), rng.choice((5.0, 40.0))),
        "expire": lambda: (rng.randrange(4), rng.choice((1, 3)), rng.choice((0.5, 4.0))),
        "stranger": lambda: (rng.randrange(4), rng.choice((1, 1, 5)), rng.choice((0.3, 2.0))),
        "unanswered": lambda: (rng.choice(UNANSWERED), rng.choice((3, 8))),
        "swap_disks": lambda: (machine(), machine(), rng.choice((0.5, 15.0))),
        "copy_disk": lambda: (machine(), rng.choice((2.0, 10.0, 40.0)), rng.choice((0.5, 15.0))),
        "moved_and_back": lambda: (machine(), machine(), rng.choice((11.5, 14.0, 25.0))),
        "twin": lambda: (machine(), rng.random() < 0.5),
        "clock_wrong": lambda: (machine(), rng.choice((20.0, 150.0))),
        "deaf": lambda: (machine(), rng.choice((11.0, 15.0, 40.0))),
        "disk_full_long": lambda: (machine(), rng.choice((100.0, 200.0))),
    }  # fmt: skip


def pairs(rng: Random, machines: int) -> Mapping[str, Callable[[], tuple[Any, ...]]]:
    """The same of faults in pairs: the second one strikes while the first one is under way."""

    def machine() -> int:
        return rng.randrange(machines)

    def opening() -> tuple[str, float]:
        return rng.choice(OPENING), rng.choice((1.0, 3.0, 8.0))

    return {
        "frozen_then_opening": lambda: (
            machine(), rng.choice(POINTS), rng.choice((11.0, 12.5, 13.5)), *opening(),
        ),
        "deaf_then_opening": lambda: (machine(), *opening()),
        "kill_in_recovery": lambda: (
            machine(), rng.choice(OPENING), rng.choice((0, 1, 5)), rng.randint(1, 3),
        ),
    }  # fmt: skip


class _Foreigner:
    """A worker of another application, which ends when it is refused, or finds itself alone."""

    name = "another"

    def __init__(self, run: Run) -> None:
        self._run = run
        self.answers = True

    def claims(self) -> Member:
        """It consumes nothing of what the others do."""
        layout = self._run.app.layout
        return Member(
            layout.partitions, layout.lanes, ("others.v1", layout.operations), (), (), -1, self.name
        )

    def unsure(self) -> None:
        """It has no lanes."""

    def assigned(self, given: Assignment, generation: int) -> None:
        """It must not be a member beside others."""
        self._run.note("foreigner", generation=generation, error=given.error)
        self.answers = False
        if not given.error and len(given.members) > 1:
            self._run.findings.append(Finding("another application is refused", str(given)))

    def displaced(self) -> bool:
        """Its name is its own."""
        return True


class Troubles(Part):
    """The troubles of a run."""

    def do_kill_opening(self, number: int, point: str, nth: int, lost: int) -> None:
        """Start a worker again, and kill it at a request of its lanes' openings."""
        self.run.at_point(number, point, nth, self.run.do_kill, number, lost, 2.0)
        self.run.do_kill(number, 0, 0.5)

    def do_freeze_opening(self, number: int, point: str, nth: int, seconds: float) -> None:
        """The same, and freeze it there."""
        self.run.at_point(number, point, nth, self.run.do_freeze, number, seconds)
        self.run.do_kill(number, 0, 0.5)

    def do_kill_all(self, lost: int, back: float) -> None:
        """All workers are killed at once."""
        for number in range(len(self.run.machines)):
            self.run.do_kill(number, lost, back + number * 0.3)

    def do_storm(self, times: int, gap: float) -> None:
        """Rebalances follow each other."""
        for number in range(times):
            self.run.fault(number * gap, self.run.do_rebalance)

    def do_away(self, how: str, seconds: float) -> None:
        """No broker answers anybody: connections are silent, or refused."""
        which = "is_refused" if how == "refused" else "is_cut_off"
        for machine in self.run.machines:
            setattr(machine, which, True)
            self.run.later(seconds, setattr, machine, which, False)

    def do_slow(self, number: int, slowness: float, seconds: float) -> None:
        """Requests of a machine take long, such as while a coordinator moves: transactions may time out."""
        self.run.machines[number].slowness = slowness
        self.run.later(seconds, setattr, self.run.machines[number], "slowness", 0.0)

    def _id_of(self, lane: int) -> str:
        return self.run.app.layout.transactional_id(lane % self.run.app.layout.lanes)

    def do_expire(self, lane: int, times: int, gap: float) -> None:
        """A coordinator ends the transaction of a lane, and fences it."""

        def expire() -> None:
            if self.run.cluster.has_producer(self._id_of(lane)):
                self.run.cluster.expire(self._id_of(lane))

        for number in range(times):
            self.run.fault(number * gap, expire)

    def do_stranger(self, lane: int, times: int, gap: float) -> None:
        """Somebody starts a producer with a lane's transactional id, and does nothing more."""

        async def start() -> None:
            with suppress(TransactionFailed):
                await self.run.cluster.transactions(self._id_of(lane)).start()

        for number in range(times):
            self.run.fault(number * gap, lambda: self.run.spawn(start()))

    def do_unanswered(self, fault: str, times: int) -> None:
        """Answers are lost, several in a row."""
        self.run.cluster.inject(Fault[fault], times=times)

    def do_swap_disks(self, one: int, other: int, back: float) -> None:
        """Two machines come back, each with the disk of the other."""
        for number in {one, other}:
            self.run.do_kill(number, 0, back)
        a, b = self.run.machines[one], self.run.machines[other]
        if a.process is None and b.process is None:
            a.stores, b.stores = b.stores, a.stores

    def do_copy_disk(self, number: int, after: float, back: float) -> None:
        """A machine comes back with the disk that it had a while ago, such as from a backup."""
        copy = self.run.machines[number].stores.copied()

        def restore() -> None:
            self.run.do_kill(number, 0, back)
            if self.run.machines[number].process is None:
                self.run.machines[number].stores = copy

        self.run.fault(after, restore)

    def do_moved_and_back(self, number: int, other: int, seconds: float) -> None:
        """A worker is frozen until others have its lanes, one of which is killed as it wakes."""
        self.run.do_freeze(number, seconds)
        if other != number:
            self.run.fault(seconds - 0.5, self.run.do_kill, other, 0, 20.0)

    def do_twin(self, number: int, with_disk: bool) -> None:  # noqa: FBT001 - as a plan has it
        """A clone of a machine starts a worker, which has the identity of the first."""
        machine = self.run.machines[number]
        if len(self.run.machines) > 3:
            return
        twin = Machine(machine.name, self.run.loop, self.run.rng)
        if with_disk:
            twin.stores = machine.stores.copied()
        self.run.machines.append(twin)
        self.run.points.append(Points(self.run.note))
        self.run.workers.append(None)
        self.run.start(len(self.run.machines) - 1)

    def do_clock_wrong(self, number: int, seconds: float) -> None:
        """A clock is so wrong that no broker takes what it stamps."""
        self.run.machines[number].clock.skew = -7200.0
        self.run.later(seconds, setattr, self.run.machines[number].clock, "skew", 0.0)

    def do_deaf(self, number: int, seconds: float) -> None:
        """A machine and the group hear nothing of each other; brokers answer it."""
        self.run.machines[number].is_deaf = True
        self.run.later(seconds, setattr, self.run.machines[number], "is_deaf", False)

    def _others_stand(self, number: int, point: str, seconds: float) -> None:
        """The other workers stand still at a request of the next opening of a lane."""
        for other in range(len(self.run.machines)):
            if other != number:
                self.run.at_point(other, point, 1, self.run.do_freeze, other, seconds)

    def do_deaf_then_opening(self, number: int, point: str, seconds: float) -> None:
        """Others stand still while they open lanes, whose worker goes on: it has not heard of it."""
        self._others_stand(number, point, seconds)
        self.do_deaf(number, 30.0)

    def do_frozen_then_opening(
        self, number: int, commit: str, frozen: float, point: str, seconds: float
    ) -> None:
        """Others stand still while they open lanes, whose worker wakes in the middle of a commit."""

        def freeze() -> None:
            self.run.do_freeze(number, frozen)
            self._others_stand(number, point, seconds)

        self.run.at_point(number, commit, 1, freeze)

    def do_kill_in_recovery(self, number: int, point: str, lost: int, times: int) -> None:
        """A worker is killed again and again while it opens its lanes."""
        for again in range(times):
            self.run.at_point(number, point, 1 + 2 * again, self.run.do_kill, number, lost, 1.0)
        self.run.do_kill(number, lost, 0.5)

    def do_foreigner(self) -> None:
        """A worker of another application joins the group of a running one, by a mistake in its name."""
        workers = [each for each in self.run.workers if each is not None and each.answers]
        if any(worker.given.active for worker in workers):
            self.run.is_recut = True  # where all others are away as it comes, they are refused
            self.run.group.join(_Foreigner(self.run))

    def do_disk_full_long(self, number: int, seconds: float) -> None:
        """A disk is full for so long that the worker gives its lanes to others."""
        self.run.do_disk_full(number, seconds)
