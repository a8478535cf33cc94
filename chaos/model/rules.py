"""What must hold in every state: the design's rules."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.model.kafka import Kafka
from chaos.model.spec import Spec
from chaos.model.store import rebuilt
from chaos.model.worker import Phase, Worker

ONCE = "a message takes effect once"
AGREE = "state, inbox, outputs and position agree"
NOTHING_LOST = "no committed position is above an unprocessed message"
STORE = "RocksDB equals the committed changelog at its position"
ONE_OWNER = "one owner can commit"
UP_TO_DATE = "who can commit stands on all that is committed"
NEVER_STOPS = "a lane stops for lost positions only when they are lost"

RULES = (ONCE, AGREE, NOTHING_LOST, STORE, ONE_OWNER, UP_TO_DATE, NEVER_STOPS)


def is_finished(spec: Spec, kafka: Kafka) -> bool:
    """Whether all input is committed, and visible to a reader of the group's position."""
    return kafka.offset == len(spec.messages)


def broken_by_kafka(spec: Spec, kafka: Kafka) -> Iterator[str]:
    """Rules about what is committed."""
    rows, marks, outputs = (kafka.decided(log) for log in (kafka.rows, kafka.marks, kafka.outputs))
    row = rows[-1].ids if rows else ()
    sent = tuple(i for entry in outputs for i in entry.ids)
    inbox = {i for entry in marks for i in entry.ids}
    recorded = marks[-1].position if marks else 0
    offset = kafka.decided_offset
    taken = spec.messages[:offset]
    if len(set(row)) < len(row) or len(set(sent)) < len(sent):
        yield ONCE
    if not set(taken) <= set(row) & set(sent):
        yield NOTHING_LOST
    if not (tuple(dict.fromkeys(taken)) == row == sent and inbox == set(taken) and recorded == offset):
        yield AGREE


def broken_by_worker(kafka: Kafka, worker: Worker, *, can_commit: bool) -> Iterator[str]:
    """Rules about a worker beside what is committed."""
    store = worker.store
    rows, marks = kafka.decided(kafka.rows), kafka.decided(kafka.marks)
    is_ahead = store.rows_at > len(rows) or store.marks_at > len(marks)
    if is_ahead or store != rebuilt(kafka, store.rows_at, store.marks_at):
        yield STORE
    stands = (store.rows_at, store.marks_at, worker.at) == (len(rows), len(marks), kafka.decided_offset)
    if can_commit and worker.phase is not Phase.ENDING and not stands:
        yield UP_TO_DATE
    if worker.phase is Phase.STOPPED:
        yield NEVER_STOPS
