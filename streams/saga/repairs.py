"""Operations on a saga that waits for an operator: functions of its row.

`retry`, `skip` and `mark_done` are for one that is `failed`, and waits for an operator; `cancel` is for one
that has not passed its pivot. They raise RepairRefused when that is not so. `now` is in epoch seconds.
"""

from __future__ import annotations

from streams.errors import RepairRefused
from streams.saga.definition import Saga, Step
from streams.saga.messages import TEXT_BOUND, Repair
from streams.saga.state import SagaRow, StepState, Transition
from streams.saga.turn import Turn

#: Why a saga that an operator has cancelled does not complete: a word for programs, as a refusal's is.
CANCELLED = "cancelled"
#: Characters that are kept of why and by whom, so that an entry of the log has both whole.
MAX_WHY, MAX_WHO = 300, 100


def apply_repair(definition: Saga, row: SagaRow, repair: Repair, now: float) -> Transition:
    """Carry out an operator's message on a saga. A refusal changes only the saga's log."""
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
    """Why and by whom, as the saga's log has it."""
    return f"{repair.why[:MAX_WHY]} ({repair.who[:MAX_WHO]})"


def refusal(operation: str) -> str:
    """The beginning of the log's entry of a refused operation."""
    return f"{operation} refused: "


def awaiting_operator(row: SagaRow) -> list[StepState]:
    """The steps that wait for an operator: compensations that have failed, or else what has no way back."""
    if row.status != "failed":
        return []
    failed = [each for each in row.steps if each.status == "failed"]
    return [each for each in failed if each.undoing] or failed


def retry(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Ask for the failed step, or for its compensation, once more, with as many tries as the first time."""
    turn, step = _taken_up(definition, row, name, now, f"retried: {reason}")
    turn.ask_again(step)
    return turn.ended()


def skip(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Go on without the failed step, or without undoing it."""
    turn, step = _taken_up(definition, row, name, now, f"skipped: {reason}")
    _can_do_without_reply(turn, step)
    turn.set_status(step, "skipped", error=reason[:TEXT_BOUND])
    turn.advance()
    return turn.ended()


def mark_done(definition: Saga, row: SagaRow, name: str, reason: str, now: float) -> Transition:
    """Go on as if the failed step had been done, or undone: an operator has done it by hand."""
    turn, step = _taken_up(definition, row, name, now, f"done by hand: {reason}")
    _can_do_without_reply(turn, step)
    if turn.state(step).undoing:
        turn.set_status(step, "compensated", error=reason[:TEXT_BOUND])
    else:
        turn.set_status(step, "completed", completed_at=now, error=reason[:TEXT_BOUND])
    turn.advance()
    return turn.ended()


def cancel(definition: Saga, row: SagaRow, reason: str, now: float) -> Transition:
    """Turn back, as if what is in progress had been refused. Whether it was done is unknown, so that is
    undone first; a reply that comes later changes nothing.
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
    """Why a saga cannot go back, or not any more; empty when it can."""
    if row.ended:
        return f"is {row.status}"
    if _goes_back(row):
        return "goes back already"
    for step in definition.steps():
        if step.pivot and step.compensate is None and row.step(step.name).status in ("in_progress", "failed"):
            return f"cannot go back: {step.name} may have been done, and nothing undoes it"
    return "" if row.status == "started" else "is past its pivot: it only goes forward"


def _goes_back(row: SagaRow) -> bool:
    """Whether it is being undone, or was."""
    stuck = any(not each.undoing for each in awaiting_operator(row))
    return row.status in ("compensating", "compensated") or (row.status == "failed" and not stuck)


def _can_do_without_reply(turn: Turn, step: Step) -> None:
    """Later commands may need what the reply to a step tells; none needs the reply to a compensation."""
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
        turn.reason = ""  # it may complete yet, or fail for another
        turn.become("started" if step.pivot else "completing", f"{name} {why}")
    return turn, step
