"""Deploys: workers restart with another version of the application, one after another or all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from streams.testing.simulation.run import Part, Run

#: Fields that a version changes, in the lane options or in the shape of the first part.
Changes = tuple[tuple[str, Any], ...]
HOW = ("one by one", "at once")


def kinds(rng: Random, versions: Sequence[Changes]) -> Mapping[str, Callable[[], tuple[Any, ...]]]:
    """For each kind of step, a function that draws its arguments."""
    return {
        "deploy": lambda: (rng.choice(versions), rng.choice(HOW), rng.choice((0.5, 4.0, 12.0))),
        "roll_back": lambda: (rng.choice(HOW), rng.choice((0.5, 4.0))),
        "standbys": lambda: (rng.choice((0, 1, 2)),),
    }  # fmt: skip


def cuts(rng: Random, partitions: int, machines: int) -> tuple[Any, ...]:
    """Draw the arguments of `do_lanes`: lane count, gap, the worker to freeze (or None), and for how long."""
    frozen = rng.choice((None, None, rng.randrange(machines)))
    return rng.randint(1, partitions), rng.choice((0.5, 4.0, 12.0)), frozen, rng.choice((11.0, 20.0, 40.0))


class Deploys(Part):
    """The deploys of a run. Each version is the planned one with some fields changed."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._before: Changes = ()
        self._now: Changes = ()

    def do_deploy(self, changes: Changes, how: str, gap: float) -> None:
        """Restart all workers with another version."""
        self._before, self._now = self._now, changes
        run = self.run
        shape, *others = run.plan.shapes
        options = dict(run.plan.options)
        for name, value in changes:
            if name in options:
                options[name] = value
            else:
                shape = replace(shape, **{name: value})
        run.version([shape, *others], options)
        for number in range(len(run.machines)):
            if how == "at once":
                run.do_kill(number, 0, gap)
            else:
                run.later(number * gap, run.do_restart, number, 0.5)

    def do_lanes(self, lanes: int, gap: float, frozen: int | None, seconds: float) -> None:
        """Change the lane count: kill and restart all workers, except for one that may be frozen."""
        run = self.run
        run.recut(lanes)
        for number in range(len(run.machines)):
            if number == frozen:
                run.do_freeze(number, seconds)
            else:
                run.do_kill(number, 0, gap)

    def do_roll_back(self, how: str, gap: float) -> None:
        """Deploy the previous version again."""
        self.do_deploy(self._before, how, gap)

    def do_standbys(self, standbys: int) -> None:
        """Change the number of standbys, and rebalance."""
        self.run.group.standbys = standbys
        self.run.group.rebalance()

    def end_faults(self) -> None:
        """Complete the last deploy: replace a broken version, and restart workers with an older one."""
        run = self.run
        mended = [part.mend() for part in run.parts]
        if any(mended):
            run.rewire()
        for number, worker in enumerate(run.workers):
            if worker is not None and worker.app is not run.app:
                run.do_kill(number, 0, 0.5)

    def missing(self) -> list[str]:
        """One entry if a worker still runs another version."""
        apps = [worker.app for worker in self.run.workers if worker is not None]
        return [] if all(app is self.run.app for app in apps) else ["a worker has another version"]
