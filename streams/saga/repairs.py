"""Operators' operations on a saga, as functions of its row.

`retry`, `skip` and `mark_done` need a saga that is `failed`; `cancel` needs one that has not passed its
pivot. Otherwise they raise RepairRefused. `now` is in epoch seconds.
"""

from __future__ import annotations

from streams.errors import RepairRefused
from streams.saga.definition import Saga, Step
from streams.saga.messages import TEXT_BOUND, Repair
from streams.saga.state import SagaRow, StepState, Transition
from streams.saga.turn import Turn

#: Reason of a saga that an operator has cancelled, for programs to read.
CANCELLED = "cancelled"
#: Characters kept of an operator's reason and name, so that a log entry has room for both.
MAX_WHY, MAX_WHO = 300, 100


def apply_repair(definition: Saga, row: SagaRow, repair: Repair, now: float) -> Transition:
    """Apply an operator's request to a saga. A refusal is logged; a refused `cancel` may send `too_late`."""
    name, why = repair.step[:TEXT_BOUND], reason_text(repair)
    try:
        match repair.operation:
            case "retry":
                return retry(definition, row, name, why, now)
            case "skip":
                return skip(definition, row, name, why, now)
            case "done":
                return mark_done(definition, row, name, why, now)
            case "cancel":
                return cancel(definition, row, why, now)
    except RepairRefused as refused:
        turn = Turn(definition, row, now)
        reason = f"; it was asked: {why}"
        entry = f"{refusal(repair.operation)}{refused}"[: TEXT_BOUND - len(reason)] + reason
        turn.note("", row.status, row.status, entry)
        if repair.operation == "cancel" and not _goes_back(row):
            turn.tell(definition.too_late)
        return turn.ended()


def reason_text(repair: Repair) -> str:
    """An operator's reason and name, as they appear in the saga's log."""
    return f"{repair.why[:MAX_WHY]} ({repair.who[:MAX_WHO]})"


def refusal(operation: str) -> str:
    """Beginning of the log entry for a refused operation."""
    return f"{operation} refused: "


def awaiting_operator(row: SagaRow) -> list[StepState]:
    """Steps that wait for an operator: failed compensations if there are any, or else failed steps."""
    if row.status != "failed":
        return []
    failed = [each for each in row.steps if each.status == "failed"]
    return [each for each in failed if each.undoing] or failed


def retry(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Run the failed step or compensation again, with all its retries."""
    turn, step = _taken_up(definition, row, name, now, f"retried: {reason}")
    turn.ask_again(step)
    return turn.ended()


def skip(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Continue without the failed step or compensation."""
    turn, step = _taken_up(definition, row, name, now, f"skipped: {reason}")
    _can_do_without_reply(turn, step)
    turn.set_status(step, "skipped", error=reason[:TEXT_BOUND])
    turn.advance()
    return turn.ended()


def mark_done(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Continue as if the failed step or compensation had succeeded, because an operator did it by hand."""
    turn, step = _taken_up(definition, row, name, now, f"done by hand: {reason}")
    _can_do_without_reply(turn, step)
    if turn.state(step).undoing:
        turn.set_status(step, "compensated", error=reason[:TEXT_BOUND])
    else:
        turn.set_status(step, "completed", completed_at=now, error=reason[:TEXT_BOUND])
    turn.advance()
    return turn.ended()


def cancel(definition: Saga, row: SagaRow, reason: str, now: float) -> Transition:
    """Turn the saga back. Steps in progress may have been carried out, so they are compensated, too. Their
    late replies change nothing.
    """
    if why_not := _why_not_cancelled(definition, row):
        raise RepairRefused(f"{row.saga_id} {why_not}")
    turn = Turn(definition, row, now)
    turn.become("compensating", f"{CANCELLED}: {reason}")
    turn.reason = row.reason or CANCELLED
    for step in definition.steps():
        if turn.state(step).status == "in_progress":
            turn.set_status(step, "failed", uncertain=True, error=CANCELLED)
    turn.advance()
    return turn.ended()


def _why_not_cancelled(definition: Saga, row: SagaRow) -> str:
    """Why a saga cannot turn back; empty if it can."""
    if row.ended:
        return f"is {row.status}"
    if _goes_back(row):
        return "goes back already"
    for step in definition.steps():
        if step.pivot and step.compensate is None and row.step(step.name).status in ("in_progress", "failed"):
            return f"cannot go back: {step.name} may have been done, and nothing undoes it"
    return "" if row.status == "started" else "is past its pivot: it only goes forward"


def _goes_back(row: SagaRow) -> bool:
    """Whether the saga is being compensated, was compensated, or failed while it was."""
    stuck = any(not each.undoing for each in awaiting_operator(row))
    return row.status in ("compensating", "compensated") or (row.status == "failed" and not stuck)


def _can_do_without_reply(turn: Turn, step: Step) -> None:
    """Raises RepairRefused if later commands may need the reply to the step, which `skip` and `done` lack."""
    if step.reply is not None and not turn.state(step).undoing:
        raise RepairRefused(f"step {step.name} of {turn.saga_id} has to say what came of it: retry it")


def _taken_up(definition: Saga, row: SagaRow, name: str, now: float, why: str) -> tuple[Turn, Step]:
    step = definition.find(name)
    if row.status != "failed":
        raise RepairRefused(f"{row.saga_id} is {row.status}: it waits for no operator")
    names = [each.name for each in awaiting_operator(row)]
    if step is None or name not in names:
        raise RepairRefused(f"{row.saga_id} does not wait for step {name}, but for {', '.join(names)}")
    turn = Turn(definition, row, now)
    if row.step(name).undoing:
        turn.become("compensating", f"{name} {why}")
    else:
        turn.reason = ""  # it may still complete, or fail for another reason
        turn.become("started" if step.pivot else "completing", f"{name} {why}")
    return turn, step
