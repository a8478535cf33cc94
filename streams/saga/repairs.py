"""What an operator may do about a saga that is `failed`, and waits for it: functions of its row.

They raise RepairRefused when the saga does not wait for an operator, or not at this step. `now` is in epoch
seconds.
"""

from __future__ import annotations

from streams.errors import RepairRefused
from streams.saga.definition import Saga, Step
from streams.saga.state import SagaRow, StepState
from streams.saga.turn import Transition, Turn


def waiting(row: SagaRow) -> list[StepState]:
    """The steps that wait for an operator: compensations that have failed, or else what has no way back."""
    if row.status != "failed":
        return []
    failed = [each for each in row.steps if each.status == "failed"]
    return [each for each in failed if each.undoing] or failed


def retry(definition: Saga, row: SagaRow, name: str, now: float) -> Transition:
    """Ask for the failed step, or for its compensation, once more, with as many tries as the first time."""
    turn, step = _taken_up(definition, row, name, now, "retried")
    turn.ask_again(step)
    return turn.ended()


def skip(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Go on without the failed step, or without undoing it."""
    turn, step = _taken_up(definition, row, name, now, f"skipped: {reason}")
    _can_do_without_reply(turn, step)
    turn.settle(step, "skipped", error=reason)
    turn.advance()
    return turn.ended()


def mark_done(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Go on as if the failed step had been done, or undone: somebody has done it by hand."""
    turn, step = _taken_up(definition, row, name, now, f"done by hand: {reason}")
    _can_do_without_reply(turn, step)
    if turn.state(step).undoing:
        turn.settle(step, "compensated", error=reason)
    else:
        turn.settle(step, "completed", completed_at=now, error=reason)
    turn.advance()
    return turn.ended()


def _can_do_without_reply(turn: Turn, step: Step) -> None:
    """Later commands may need what the reply to a step tells; nobody needs the reply to a compensation."""
    if step.reply is not None and not turn.state(step).undoing:
        raise RepairRefused(f"step {step.name} of {turn.row.saga_id} has to say what came of it: retry it")


def _taken_up(definition: Saga, row: SagaRow, name: str, now: float, why: str) -> tuple[Turn, Step]:
    step = definition.find(name)
    if row.status != "failed":
        raise RepairRefused(f"{row.saga_id} is {row.status}: it waits for nobody")
    names = [each.name for each in waiting(row)]
    if step is None or name not in names:
        raise RepairRefused(f"{row.saga_id} does not wait for step {name}, but for {', '.join(names)}")
    turn = Turn(definition, row, now)
    if row.step(name).undoing:
        turn.become("compensating", f"{name} {why}")
    else:
        turn.become("started" if step.pivot else "completing", f"{name} {why}")
    return turn, step
