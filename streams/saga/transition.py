"""Transitions of a saga: functions of its definition, its row, the message and the time.

Stages run in order. If a step fails, the saga turns back once all steps of its group have ended. It
compensates what was done, or may have been done, from the last stage to the first, and waits for the replies
of a stage before the next. After the pivot it cannot turn back: a step that does
not succeed makes the saga `failed`. So does a compensation that does not succeed.
"""

from __future__ import annotations

from streams.errors import TooLarge
from streams.model.message import Message
from streams.saga.definition import Saga
from streams.saga.messages import IGNORED, Reply, saga_id
from streams.saga.replies import fields_of
from streams.saga.state import KEPT_BOUND, SagaRow, StepState, Transition
from streams.saga.turn import Turn

#: Reason in the `conflict` message, for programs to read.
STARTED_BEFORE = "started_before"


def begin(definition: Saga, message: Message, now: float) -> Transition:
    """Start a saga with a message at `now`, in epoch seconds. Raises TooLarge if the row would keep more than
    KEPT_BOUND bytes of the message.
    """
    steps = tuple(
        StepState(
            name=each.name,
            action=each.command.TOPIC if each.command else "",
            compensation=each.compensate.TOPIC if each.compensate else "",
        )
        for each in definition.steps()
    )
    start = definition.kept(message)
    if len(start) > KEPT_BOUND:
        raise TooLarge(
            f"{definition.name}:{message.key} cannot begin: of {type(message).__name__} its row would keep "
            f"{len(start)} bytes, and the limit is {KEPT_BOUND}; name in `forgets` what no step needs"
        )
    row = SagaRow(
        saga_id=saga_id(definition.name, message.key),
        version=definition.version,
        status="started",
        current_step="",
        steps=steps,
        created_at=now,
        start=start,
        definition=definition.digest,
    )
    turn = Turn(definition, row, now)
    turn.note("", "", "started", f"by {type(message).__name__}")
    turn.advance()
    return turn.ended()


def receive(definition: Saga, row: SagaRow, reply: Reply, now: float) -> Transition:
    """Apply a reply, or a timer, to a saga at `now`, epoch seconds. One that is not
    awaited is logged and changes nothing. A success with unreadable or too large data counts as an error.
    """
    turn = Turn(definition, row, now)
    step, state = definition.find(reply.step), row.find(reply.step)
    if step is None or state is None or not reply.command_id or reply.command_id != state.awaiting:
        turn.unawaited(reply)
    elif reply.outcome == "due":
        turn.send(step)
    elif reply.outcome == "timed_out" and turn.ask_after(step):
        pass
    elif turn.state(step).undoing:
        turn.undone(step, reply)
    else:
        turn.done(step, reply)
    return turn.ended()


def start_again(definition: Saga, row: SagaRow, message: Message, now: float) -> Transition:
    """Refuse a start message for a saga that began with other content: log it, and send the definition's
    `conflict` message.
    """
    turn = Turn(definition, row, now)
    kind = type(message).__name__
    turn.note("", row.status, row.status, f"{IGNORED}{kind} with other content would start it again")
    turn.tell_of(definition.conflict, {**fields_of(message), "reason": STARTED_BEFORE})
    return turn.ended()
