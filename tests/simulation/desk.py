"""Operators at work: handlers are paused, drained and resumed, dead letters edited, by two people at once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import letter_id
from streams.model.envelope import new_headers
from streams.model.operations import (
    HANDLER_OPERATION,
    HandlerCommand,
    HandlerOperation,
    LetterCommand,
    Operation,
    encode_operation,
)
from streams.ports import TP
from streams.testing.simulation.judge import letters_in
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run


@dataclass(frozen=True)
class Desk:
    """What a plan has of operators."""

    def part(self, run: Run) -> DeskPart:
        """The part of a run."""
        return DeskPart(run)


def plan(rng: Random) -> tuple[Desk, list[PlanStep]]:
    """What operators of a seed do."""
    steps = []
    for _ in range(rng.choice((1, 2, 4))):
        kind = rng.choice(("pause", "pause", "drain", "drain", "resume"))
        what = (kind, rng.randrange(30), rng.choice(("once", "once", "twice", "again")))
        steps.append(PlanStep(rng.uniform(0.5, 40), "handler", what))
    if rng.random() < 0.5:
        steps.append(PlanStep(rng.uniform(10, 60), "edit", (rng.random() < 0.3,)))
    return Desk(), steps


class DeskPart(Part):
    """The operators of a run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: What was asked, by id, handler and kind, in how many partitions.
        self._asked: set[tuple[str, str, str, int]] = set()
        self._number = 0
        self._touched: dict[str, None] = {}

    def do_handler(self, kind: str, which: int, how: str) -> None:
        """Ask something of a handler, in all partitions: once, by two people, or with one id twice."""
        names = sorted(self.run.app.handlers)
        handler = names[which % len(names)]
        self._touched[handler] = None
        for _ in range(1 if how == "once" else 2):
            self._number += how != "again"
            self._ask(HandlerCommand(kind), handler, f"asked-{self._number}-{how}")
        self._number += 1

    def _ask(self, kind: HandlerCommand, handler: str, own: str) -> None:
        asked = HandlerOperation(kind=kind, handler=handler, who="ann", why="simulated", at_ms=1)
        headers = new_headers(HANDLER_OPERATION, handler, source="desk", time=1e9, message_id=own)
        for partition in range(self.run.plan.partitions):
            self._asked.add((own, handler, str(kind), partition))
            tp = TP(self.run.app.layout.operations, partition)
            self.run.cluster.produce(tp, handler.encode(), encode_operation(asked), headers)

    def do_edit(self, twice: bool) -> None:
        """Edit each dead letter so that nothing is wrong with it any more, perhaps from two terminals."""
        for (partition, key), letter in sorted(letters_in(self.run).items()):
            if not letter.handler or letter.omitted or not letter.value:
                continue  # it was given up by no handler: a copy of it may be handled, too
            said: dict[str, Any] = json.loads(letter.value)
            value = json.dumps({**said, **{name: "" for name in ("poison",) if name in said}}).encode()
            ident = letter_id(store_key(partition, key))
            command = Operation(
                kind=LetterCommand.EDIT, letter=ident, who="ann", why="simulated", at_ms=1, value=value
            )
            for _ in range(1 + twice):
                self._number += 1
                headers = new_headers(
                    "operation", ident, source="desk", time=1e9, message_id=f"edit-{self._number}"
                )
                tp = TP(self.run.app.layout.operations, partition)
                self.run.cluster.produce(tp, ident.encode(), encode_operation(command), headers)

    def end_faults(self) -> None:
        """Whatever was paused runs again."""
        for handler in self._touched:
            self._ask(HandlerCommand.RESUME, handler, f"last-{handler}")

    def missing(self) -> list[str]:
        """Handlers that do not run."""
        lanes = [
            lane for worker in self.run.workers if worker is not None for lane in worker.host.lanes.values()
        ]
        return [
            f"lane {lane.number}: {name} is paused"
            for lane in lanes
            for name, gate in lane.gates.items()
            if gate.pauses
        ]

    def judge(self) -> list[Finding]:
        """Each thing that was asked is done once in each partition, and the log says so."""
        done: Counter[tuple[str, str, str, int]] = Counter()
        for record in self.run.cluster.visible(self.run.app.layout.operations_log):
            said = json.loads(record.value or b"")
            if "partition" in said and said["id"] and said["operation"] in tuple(HandlerCommand):
                done[said["id"], said["handler"], said["operation"], said["partition"]] += 1
        if done == dict.fromkeys(self._asked, 1):
            return []
        wrong = {asked: done[asked] for asked in self._asked | done.keys() if done[asked] != 1}
        return [Finding("an operation is done once", str(dict(sorted(wrong.items()))))]
