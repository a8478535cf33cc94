"""What an operator may do about a saga that is `failed`, and waits for it: a function of its row."""

from __future__ import annotations

from streams.errors import RepairRefused
from streams.saga.definition import Saga, Step
from streams.saga.state import SagaRow
from streams.saga.transition import Transition, Turn


def retry(definition: Saga, row: SagaRow, name: str, now: float) -> Transition:
    """Ask for the failed step, or for its compensation, once more, with as many tries as the first time.

    Like the others it raises RepairRefused when the saga does not wait for an operator, or not at this step.
    `now` is in epoch seconds.
    """
    turn, step = _taken_up(definition, row, name, now, "retried")
    turn.ask_again(step)
    return turn.ended()


def skip(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Go on without the failed step, or without undoing it."""
    turn, step = _taken_up(definition, row, name, now, f"skipped: {reason}")
    turn.settle(step, "skipped", error=reason)
    turn.advance()
    return turn.ended()


def mark_done(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Go on as if the failed step had been done, or undone: somebody has done it by hand. A step whose reply
    has data that later ones need cannot be marked.
    """
    turn, step = _taken_up(definition, row, name, now, f"done by hand: {reason}")
    if turn.state(step).undoing:
        turn.settle(step, "compensated", error=reason)
    elif step.reply is not None:
        raise RepairRefused(f"step {name} of {row.saga_id} has to say what came of it: retry it")
    else:
        turn.settle(step, "completed", completed_at=now, error=reason)
    turn.advance()
    return turn.ended()


def _taken_up(definition: Saga, row: SagaRow, name: str, now: float, why: str) -> tuple[Turn, Step]:
    step = definition.find(name)
    if row.status != "failed":
        raise RepairRefused(f"{row.saga_id} is {row.status}: it waits for nobody")
    if step is None or row.step(name).status != "failed":
        failed = ", ".join(each.name for each in row.steps if each.status == "failed")
        raise RepairRefused(f"{row.saga_id} does not wait for step {name}, but for {failed}")
    turn = Turn(definition, row, now)
    if row.step(name).undoing:
        turn.become("compensating", f"{name} {why}")
    else:
        turn.become("started" if step.pivot else "completing", f"{name} {why}")
    return turn, step
