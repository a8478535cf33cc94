"""`simulate`: an application of somebody's own in a world that one seed decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from streams.errors import WiringError
from streams.model.choreography import Choreography
from streams.model.message import Message
from streams.testing.simulation import troubles
from streams.testing.simulation.faults import kinds_of
from streams.testing.simulation.handlers import Handlers, HandlersPart, SimulatedWorld
from streams.testing.simulation.plan import Finding, Plan, PlanStep
from streams.testing.simulation.play import run
from streams.testing.simulation.shrink import shrink

#: Messages of a workload in one run, at most: a run takes some milliseconds for each.
MOST = 1000
#: Seconds in which messages are sent and faults happen.
LASTS = 40.0


class Send(NamedTuple):
    """A message that a client sends.

    Attributes:
        message: what it sends.
        at: when, in seconds since the run began; None: the seed decides.
        id: its `ce_id`; empty: one of its own.
    """

    message: Message
    at: float | None = None
    id: str = ""


#: Yields the messages that clients send, by the numbers of a seed.
Workload = Callable[[Random], Iterable[Message | Send]]
Resources = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class SimulationFailed(AssertionError):
    """A run in which something does not hold: what, after which steps, and how to repeat it."""


@dataclass(frozen=True)
class Simulated:
    """The user's application, workload and seed of a simulation.

    Arguments:
        app: the wiring, or a worker that has one.
        workload: as it is described above.
        resources: what handlers name as keyword-only parameters; where that keeps anything, a function that
            makes it anew for each run. A `clock` is there already: it is the simulated one.
        check: what else has to hold when all is settled: it is given the SimulatedWorld, and asserts.
        dead: errors for which handlers may give messages up in this workload, with all that are derived from
            them. Any other dead letter fails the run; one for what a handler has returned always does.

    Raises WiringError where app and workload are none, or do not fit.
    """

    app: Any
    workload: Workload
    resources: Resources | None = None
    check: Callable[[SimulatedWorld], object] | None = None
    dead: tuple[type[Exception], ...] = ()

    def plan(self, seed: int) -> Plan:
        """The run of a seed."""
        wiring, rng = self._wiring(), Random(seed)
        partitions, machines = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 2, 3))
        lanes, standbys = rng.randint(1, partitions), rng.choice((0, 1, 1))
        options = {
            "max_batch": rng.choice((1, 3, 50)),
            "max_ahead": rng.choice((0, 5, 10_000)),
            "loopback": rng.random() < 0.8,
            "linger": rng.choice((0.0, 0.0, 0.05)),
            "fenced_pause": 1.0,
        }
        kinds = {**kinds_of(rng, machines), **troubles.kinds(rng, machines)}
        del kinds["outage"]  # what is outside is the user's
        faults = []
        for _ in range(rng.choice((0, 1, 3, 6))):
            kind = rng.choice(list(kinds))
            faults.append(PlanStep(rng.uniform(0.5, LASTS + 5), kind, kinds[kind]()))
        steps = sorted([*self._sends(wiring, rng, seed), *faults], key=lambda step: step.at)
        shapes = (Handlers(wiring, self._resources(wiring), self.check, self.dead),)
        return Plan(seed, partitions, lanes, machines, standbys, shapes, options, tuple(steps))

    def _wiring(self) -> Choreography:
        wiring = getattr(self.app, "wiring", self.app)
        if not isinstance(wiring, Choreography):
            raise WiringError(
                f"a {type(self.app).__name__} is no app: give a choreography(...), or a Worker that has one"
            )
        if read := sorted(wiring.sources()):
            raise WiringError(
                f"source({read[0]!r}) is not simulated yet: give a choreography without sources, and let"
                " the workload yield what `into` makes"
            )
        return wiring

    def _resources(self, wiring: Choreography) -> Callable[[], Mapping[str, Any]]:
        given = self.resources or {}

        def make() -> Mapping[str, Any]:
            return given() if callable(given) else given

        try:
            wiring.check_resources({"clock", *make()})
        except WiringError as error:
            raise WiringError(f"{error}. Give simulate(resources=...) a stand-in for each") from error
        return make

    def _sends(self, wiring: Choreography, rng: Random, seed: int) -> list[PlanStep]:
        steps: list[PlanStep] = []
        yielded = list(islice(self.workload(Random(f"workload {seed}")), MOST + 1))
        if len(yielded) > MOST:
            raise WiringError(
                f"the workload of seed {seed} yields more than {MOST} messages: let it end sooner"
            )
        for number, each in enumerate(yielded):
            send = each if isinstance(each, Send) else Send(each)
            _check(wiring, send.message)
            at = rng.uniform(0, LASTS) if send.at is None else send.at
            away = int(rng.random() < 0.1)
            steps.append(PlanStep(at, "send", (send.message, send.id or f"m{number}", away)))
            if rng.random() < 0.15:  # a client that has got no answer sends again
                steps.append(PlanStep(at + rng.choice((0.0, 0.3, 30.0)), "send", steps[-1].what))
        return steps


def _check(wiring: Choreography, message: Any) -> None:
    if not isinstance(message, Message):
        raise WiringError(f"the workload yields {message!r}: yield messages, or Send(message, at=seconds)")
    name = type(message).__name__
    if message.TOPIC not in wiring.routes:
        raise WiringError(
            f"the workload yields a {type(message).__name__}, which no line of the wiring takes"
        )
    if not wiring.uses_inbox(message.TOPIC):
        raise WiringError(
            f"the workload yields a {name}, which handlers send: clients write only to topics from outside"
        )


def simulate(
    app: Any,
    workload: Workload,
    seed: int,
    *,
    resources: Resources | None = None,
    check: Callable[[SimulatedWorld], object] | None = None,
    dead: tuple[type[Exception], ...] = (),
) -> SimulatedWorld:
    """Run an application in a simulated world, and judge it: by what has to hold of any, and by a serial run
    of the same messages without faults. `app`, `workload`, `resources`, `check` and `dead` are those of
    `Simulated`; the seed decides the rest.

    Returns what the run has left behind. Raises SimulationFailed, with the fewest messages and faults found
    that fail in the same way; and WiringError where app and workload do not fit.
    """
    plan = Simulated(app, workload, resources, check, dead).plan(seed)
    result = run(plan)
    if result.findings:
        plan = shrink(plan, result.findings[0].invariant)
        raise SimulationFailed(report(plan, run(plan).findings))
    part = result.parts[0]
    assert isinstance(part, HandlersPart)
    return part.world


def report(plan: Plan, findings: list[Finding]) -> str:
    """A run in words: what it was made of, its steps with their times in seconds, and what does not hold."""
    head = (
        f"seed {plan.seed}: {plan.partitions} partitions, {plan.lanes} lanes, {plan.machines} workers,"
        f" {plan.standbys} standbys, {', '.join(f'{name} {value}' for name, value in plan.options.items())}"
    )
    steps = [f"    {step}" for step in plan.steps]
    found = [f"  {name}: {where}" for name, where in findings] or ["  all holds"]
    return "\n".join([head, *steps, *found])
