"""What must hold in every state: the design's rules."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.model.kafka import Ids, Kafka, Log
from chaos.model.spec import Spec
from chaos.model.store import rebuilt
from chaos.model.worker import ModelWorker, Phase

ONCE = "a message takes effect once"
AGREE = "state, inbox, outputs and position agree"
NOTHING_LOST = "no committed position is above an unprocessed message"
STORE = "RocksDB equals the committed changelog at its position"
ONE_OWNER = "one owner can commit"
UP_TO_DATE = "who can commit has all that is committed"
NEVER_STOPS = "a lane stops for lost positions only when they are lost"

RULES = (ONCE, AGREE, NOTHING_LOST, STORE, ONE_OWNER, UP_TO_DATE, NEVER_STOPS)


def is_finished(spec: Spec, kafka: Kafka) -> bool:
    """Whether all input is committed, and visible to a reader of the group's position."""
    if kafka.offset < len(spec.messages) or not spec.loops:
        return kafka.offset == len(spec.messages)
    return {-i for i in spec.messages} <= set(kafka.rows[-1].ids)


def broken_by_kafka(spec: Spec, kafka: Kafka) -> Iterator[str]:
    """Rules about what is committed."""
    rows, marks, outputs = (kafka.decided(log) for log in (kafka.rows, kafka.marks, kafka.outputs))
    row = rows[-1].ids if rows else ()
    sent = tuple(i for entry in outputs for i in entry.ids)
    inbox = {i for entry in marks for i in entry.ids}
    recorded = marks[-1].position if marks else 0
    offset = kafka.decided_offset
    below = spec.messages[:offset]
    above = tuple(spec.messages[place] for place in (marks[-1].ahead if marks else ()))
    taken = {*below, *above}
    if spec.loops:
        yield from _broken_by_loops(row, sent, outputs, marks[-1].read if marks else 0, taken)
        return
    if len(set(row)) < len(row) or len(set(sent)) < len(sent):
        yield ONCE
    if not taken <= set(row) & set(sent):
        yield NOTHING_LOST
    in_order = spec.overtakes or tuple(dict.fromkeys(below)) == row
    if not (in_order and row == sent and taken == set(row) == inbox and recorded == offset):
        yield AGREE


def _broken_by_loops(row: Ids, sent: Ids, outputs: Log, read: int, taken: set[int]) -> Iterator[str]:
    """The same, where each message sends the one with its negative number to its own lane."""
    due = {i for number, entry in enumerate(outputs) if entry.marked or number < read for i in entry.ids}
    if len(set(row)) < len(row) or len(set(sent)) < len(sent):
        yield ONCE
    if not taken | due <= set(row):
        yield NOTHING_LOST
    if taken | due != set(row) or {-i for i in taken} != set(sent):
        yield AGREE


def broken_by_worker(kafka: Kafka, worker: ModelWorker, *, can_commit: bool) -> Iterator[str]:
    """Rules about a worker beside what is committed."""
    store = worker.store
    rows, marks = kafka.decided(kafka.rows), kafka.decided(kafka.marks)
    is_ahead = store.rows_at > len(rows) or store.marks_at > len(marks)
    if is_ahead or store != rebuilt(kafka, store.rows_at, store.marks_at):
        yield STORE
    is_at = (store.rows_at, store.marks_at, worker.at)
    if (
        can_commit
        and worker.phase is not Phase.ENDING
        and is_at != (len(rows), len(marks), kafka.decided_offset)
    ):
        yield UP_TO_DATE
    if worker.phase is Phase.STOPPED:
        yield NEVER_STOPS
