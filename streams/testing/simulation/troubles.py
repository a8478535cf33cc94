"""Faults of several machines, of identities and disks, and during the opening of lanes."""

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

#: Requests and points of a lane's opening, in order.
OPENING = (
    "reader", "start", "identity", "committed", "begin_offsets", "end_offsets", "recovering"
)  # fmt: skip
#: Broker faults that may occur several times in a row.
UNANSWERED = ("UNAVAILABLE", "START_FAILED", "COMMIT_DONE", "COMMIT_LOST")


def kinds(rng: Random, machines: int) -> Mapping[str, Callable[[], tuple[Any, ...]]]:
    """For each kind of fault, a function that draws the arguments of its step."""

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
    """Like `kinds`, for pairs of faults: the second one strikes during the first one."""

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
    """A worker of another application. It leaves when it is refused or finds itself alone."""

    name = "another"

    def __init__(self, run: Run) -> None:
        self._run = run
        self.answers = True

    def claims(self) -> Member:
        """A description with topics that the others do not consume."""
        layout = self._run.app.layout
        return Member(
            layout.partitions, layout.lanes, ("others.v1", layout.operations), (), (), -1, self.name
        )

    def unsure(self) -> None:
        """Do nothing: it has no lanes."""

    def assigned(self, given: Assignment, generation: int) -> None:
        """Add a finding if it was accepted together with other members, and leave."""
        self._run.note("foreigner", generation=generation, error=given.error)
        self.answers = False
        if not given.error and len(given.members) > 1:
            self._run.findings.append(Finding("another application is refused", str(given)))

    def displaced(self) -> bool:
        """Return True: no other member has its name."""
        return True


class Troubles(Part):
    """Does the steps of these faults."""

    def do_kill_opening(self, number: int, point: str, nth: int, lost: int) -> None:
        """Restart a worker, and kill it when the opening of its lanes reaches a point for the nth time."""
        self.run.at_point(number, point, nth, self.run.do_kill, number, lost, 2.0)
        self.run.do_kill(number, 0, 0.5)

    def do_freeze_opening(self, number: int, point: str, nth: int, seconds: float) -> None:
        """Restart a worker, and freeze it when the opening of its lanes reaches a point for the nth time."""
        self.run.at_point(number, point, nth, self.run.do_freeze, number, seconds)
        self.run.do_kill(number, 0, 0.5)

    def do_kill_all(self, lost: int, back: float) -> None:
        """Kill all workers at once."""
        for number in range(len(self.run.machines)):
            self.run.do_kill(number, lost, back + number * 0.3)

    def do_storm(self, times: int, gap: float) -> None:
        """Trigger several rebalances, `gap` seconds apart."""
        for number in range(times):
            self.run.fault(number * gap, self.run.do_rebalance)

    def do_away(self, how: str, seconds: float) -> None:
        """Cut all machines off from the brokers: connections are silent or refused."""
        which = "is_refused" if how == "refused" else "is_cut_off"
        for machine in self.run.machines:
            setattr(machine, which, True)
            self.run.later(seconds, setattr, machine, which, False)

    def do_slow(self, number: int, slowness: float, seconds: float) -> None:
        """Slow down a machine's requests, as when a coordinator moves. Transactions may time out."""
        self.run.machines[number].slowness = slowness
        self.run.later(seconds, setattr, self.run.machines[number], "slowness", 0.0)

    def _id_of(self, lane: int) -> str:
        return self.run.app.layout.transactional_id(lane % self.run.app.layout.lanes)

    def do_expire(self, lane: int, times: int, gap: float) -> None:
        """Time out a lane's transaction at the coordinator, which fences the lane."""

        def expire() -> None:
            if self.run.cluster.has_producer(self._id_of(lane)):
                self.run.cluster.expire(self._id_of(lane))

        for number in range(times):
            self.run.fault(number * gap, expire)

    def do_stranger(self, lane: int, times: int, gap: float) -> None:
        """Start a producer with a lane's transactional id, which fences the lane, and do nothing with it."""

        async def start() -> None:
            with suppress(TransactionFailed):
                await self.run.cluster.transactions(self._id_of(lane)).start()

        for number in range(times):
            self.run.fault(number * gap, lambda: self.run.spawn(start()))

    def do_unanswered(self, fault: str, times: int) -> None:
        """Inject the same broker fault several times in a row."""
        self.run.cluster.inject(Fault[fault], times=times)

    def do_swap_disks(self, one: int, other: int, back: float) -> None:
        """Kill the workers of two machines, which come back with each other's disks."""
        for number in {one, other}:
            self.run.do_kill(number, 0, back)
        a, b = self.run.machines[one], self.run.machines[other]
        if a.process is None and b.process is None:
            a.stores, b.stores = b.stores, a.stores

    def do_copy_disk(self, number: int, after: float, back: float) -> None:
        """Let a machine come back with an older state of its disk, as from a backup."""
        copy = self.run.machines[number].stores.copied()

        def restore() -> None:
            self.run.do_kill(number, 0, back)
            if self.run.machines[number].process is None:
                self.run.machines[number].stores = copy

        self.run.fault(after, restore)

    def do_moved_and_back(self, number: int, other: int, seconds: float) -> None:
        """Freeze a worker until others have its lanes, and kill one of the others as it wakes."""
        self.run.do_freeze(number, seconds)
        if other != number:
            self.run.fault(seconds - 0.5, self.run.do_kill, other, 0, 20.0)

    def do_twin(self, number: int, with_disk: bool) -> None:  # noqa: FBT001 - as a plan has it
        """Clone a machine and start a worker on the clone, which has the same identity."""
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
        """Set a machine's clock two hours back, so that brokers refuse its timestamps."""
        self.run.machines[number].clock.skew = -7200.0
        self.run.later(seconds, setattr, self.run.machines[number].clock, "skew", 0.0)

    def do_deaf(self, number: int, seconds: float) -> None:
        """Cut a machine off from the group, while brokers still answer its other requests."""
        self.run.machines[number].is_deaf = True
        self.run.later(seconds, setattr, self.run.machines[number], "is_deaf", False)

    def _others_stand(self, number: int, point: str, seconds: float) -> None:
        """Freeze each other worker when it next reaches a point of a lane's opening."""
        for other in range(len(self.run.machines)):
            if other != number:
                self.run.at_point(other, point, 1, self.run.do_freeze, other, seconds)

    def do_deaf_then_opening(self, number: int, point: str, seconds: float) -> None:
        """Freeze other workers while they open a worker's lanes. That worker is cut off from the group, and
        continues.
        """
        self._others_stand(number, point, seconds)
        self.do_deaf(number, 30.0)

    def do_frozen_then_opening(
        self, number: int, commit: str, frozen: float, point: str, seconds: float
    ) -> None:
        """Freeze a worker during a commit, and others while they open its lanes. It wakes meanwhile."""

        def freeze() -> None:
            self.run.do_freeze(number, frozen)
            self._others_stand(number, point, seconds)

        self.run.at_point(number, commit, 1, freeze)

    def do_kill_in_recovery(self, number: int, point: str, lost: int, times: int) -> None:
        """Kill a worker several times while it opens its lanes."""
        for again in range(times):
            self.run.at_point(number, point, 1 + 2 * again, self.run.do_kill, number, lost, 1.0)
        self.run.do_kill(number, lost, 0.5)

    def do_foreigner(self) -> None:
        """Let a worker of another application join the group, as if it were misconfigured."""
        workers = [each for each in self.run.workers if each is not None and each.answers]
        if any(worker.given.active for worker in workers):
            self.run.is_recut = True  # if it joins while all others are away, they are refused
            self.run.group.join(_Foreigner(self.run))

    def do_disk_full_long(self, number: int, seconds: float) -> None:
        """Keep a disk full for so long that the worker hands its lanes to others."""
        self.run.do_disk_full(number, seconds)
