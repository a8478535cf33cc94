"""Runs a plan in its own event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest.mock import patch

import structlog

from streams.testing.loop import SimulatedLoop
from streams.testing.simulation.coverage import Strike
from streams.testing.simulation.deploys import Deploys
from streams.testing.simulation.machines import own_tasks
from streams.testing.simulation.plan import Finding, Plan
from streams.testing.simulation.run import Part, Run
from streams.testing.simulation.topics import Topics
from streams.testing.simulation.troubles import Troubles

#: Modules that use `perf_counter`, which a run replaces by simulated time so that the seed determines it.
_TIMED = (
    "engine.way.intake",
    "engine.way.loopback",
    "engine.way.attempt",
    "engine.way.turns",
    "engine.way.measures",
)

#: Log events that no simulated fault may cause; each one is a finding.
WRONG = frozenset(("lane_error", "lane_quarantined", "standby_error"))


@dataclass
class Result:
    """The result of a run: findings, trace and coverage."""

    findings: list[Finding]
    trace: list[str]
    coverage: set[Strike]
    parts: list[Part]


@contextmanager
def _no_real_time(loop: SimulatedLoop) -> Iterator[None]:
    patches = [patch(f"streams.{module}.perf_counter", loop.time) for module in _TIMED]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def run(plan: Plan, *, verbose: bool = False) -> Result:
    """Run a plan to its end in its own event loop. The seed also determines `random` for handlers."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.simulate()
        own_tasks(loop)
        running: list[Run] = []

        def lost(_: Any, context: dict[str, Any]) -> None:
            running[0].findings.append(
                Finding("an error that is lost", repr(context.get("exception") or context["message"]))
            )

        loop.set_exception_handler(lost)

        def log_to_trace(_: Any, __: str, event: MutableMapping[str, Any]) -> NoReturn:
            if running:
                name = event.pop("event")
                error = event.pop("exc_info", None)
                if name in WRONG:
                    running[0].findings.append(Finding(f"no {name}", repr(event.get("error", error))))
                running[0].note(name, **event)
            raise structlog.DropEvent

        async def whole() -> None:
            running.append(Run(plan, loop, verbose=verbose))
            running[0].beside += [kind(running[0]) for kind in (Troubles, Topics, Deploys)]
            await running[0].go()

        was, drawn = structlog.get_config(), random.getstate()
        random.seed(plan.seed)
        structlog.configure(processors=[log_to_trace], cache_logger_on_first_use=False)
        try:
            with _no_real_time(loop):
                runner.run(whole())
        finally:
            structlog.configure(**was)
            random.setstate(drawn)
    went = running[0]
    return Result(went.findings, went.trace, went.coverage, went.parts)
