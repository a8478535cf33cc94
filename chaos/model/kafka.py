"""Kafka's side of the model: logs, transactional ids with their coordinator, and the group's position.

Simplified without loss for the lane:

- An epoch is only ever compared with the newest, so an id has a `holder`: the worker whose producer has the
  newest epoch, or none. Requests with an older epoch change nothing, and are not kept.
- Markers take no offset, and what was aborted leaves its log: a read_committed reader passes over both.
- A request that is lost is one that is never delivered. Records and EndTxn arrive at any time after they were
  sent, also when their sender is dead or has given up, until the id is initialised again.
- The parts of a transaction arrive in one order, so that a torn one is a prefix; readers see no difference.
- Requests about positions are of version 0: they neither check the group's generation nor wait for pending
  transactions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from chaos.model.spec import Spec

Ids = tuple[int, ...]


class PendingPart(IntEnum):
    """What a transaction writes, in the order in which the model delivers it."""

    ROWS = 0
    MARKS = 1  # inbox entries and the position: the changelogs beside the rows
    OUTPUTS = 2
    OFFSETS = 3


class StagedTransaction(NamedTuple):
    """The contents of a transaction: ids that take effect, the row after them, the position after them, which
    messages above it are noted as handled, what is sent, marked as handled or not, and how much of what was
    sent the lane has read back.
    """

    ids: Ids
    row: Ids
    position: int
    ahead: Ids = ()
    sends: Ids = ()
    marked: bool = False
    read: int = 0

    @property
    def parts(self) -> tuple[PendingPart, ...]:
        """A transaction of duplicates alone has no rows and no outputs."""
        has = {PendingPart.ROWS: bool(self.ids), PendingPart.OUTPUTS: bool(self.sends)}
        return tuple(part for part in PendingPart if has.get(part, True))


class ModelTransaction(IntEnum):
    """States of a transaction at its coordinator."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3


class TransactionalId(NamedTuple):
    """A transactional id at its coordinator. `written` counts the parts that have reached their logs,
    `ending` is an EndTxn on its way, `awaited` by its sender or not, `unmarked` parts wait for their marker.
    """

    holder: int | None = None
    transaction: ModelTransaction = ModelTransaction.EMPTY
    staged: StagedTransaction | None = None
    written: int = 0
    ending: bool = False
    awaited: bool = False
    unmarked: tuple[PendingPart, ...] = ()


class ModelRecord(NamedTuple):
    """A record; `pending` is the number of the transactional id whose marker it waits for, `ahead` are the
    messages above the position that were handled, too; `marked` says that its lane has handled it already,
    `read` how much of the outputs it has read back.
    """

    ids: Ids
    position: int
    pending: int | None
    ahead: Ids = ()
    marked: bool = False
    read: int = 0


Log = tuple[ModelRecord, ...]


class Kafka(NamedTuple):
    """All that Kafka knows. `offset` and `read` are the group's positions in the source and in the outputs,
    `answers` are the workers to whom the answer to their EndTxn is on its way.
    """

    ids: tuple[TransactionalId, ...]
    rows: Log = ()
    marks: Log = ()
    outputs: Log = ()
    offset: int = 0
    read: int = 0
    late_offset: int | None = None
    answers: tuple[int, ...] = ()
    assigned: int = 0

    def with_id(self, number: int, **changes: Any) -> Kafka:
        """A copy with changes to one transactional id."""
        changed = self.ids[number]._replace(**changes)
        return self._replace(ids=(*self.ids[:number], changed, *self.ids[number + 1 :]))

    def decided(self, log: Log) -> Log:
        """What is committed of a log, whether its markers are written or not."""
        return tuple(
            entry
            for entry in log
            if entry.pending is None or self.ids[entry.pending].transaction is ModelTransaction.PREPARE_COMMIT
        )

    @property
    def decided_offset(self) -> int:
        """The group's position when every marker will have been written."""
        offsets = [self.offset, self.late_offset or 0]
        for each in self.ids:
            if each.transaction is ModelTransaction.PREPARE_COMMIT and PendingPart.OFFSETS in each.unmarked:
                assert each.staged is not None
                offsets.append(each.staged.position)
        return max(offsets)


def stable(log: Log) -> int:
    """The last stable offset."""
    return next((offset for offset, entry in enumerate(log) if entry.pending is not None), len(log))


_LOGS = {PendingPart.ROWS: "rows", PendingPart.MARKS: "marks", PendingPart.OUTPUTS: "outputs"}


# -- what a producer asks for ---------------------------------------------------------------------------


def initialise(kafka: Kafka, number: int, owner: int) -> tuple[Kafka, bool] | None:
    """InitProducerId: whether it is answered; None while markers are being written (the client asks again).

    An ongoing transaction is aborted first, and its producer fenced.
    """
    transaction = kafka.ids[number].transaction
    if transaction is ModelTransaction.EMPTY:
        return kafka.with_id(number, holder=owner), True
    if transaction is ModelTransaction.ONGOING:
        return fence(kafka, number), False
    return None


def fence(kafka: Kafka, number: int) -> Kafka:
    """A newer epoch without a holder; an ongoing transaction is to be aborted."""
    if kafka.ids[number].transaction is ModelTransaction.ONGOING:
        kafka = kafka.with_id(number, transaction=ModelTransaction.PREPARE_ABORT, ending=False, awaited=False)
    return kafka.with_id(number, holder=None)


def add(kafka: Kafka, number: int, staged: StagedTransaction) -> Kafka:
    """AddPartitionsToTxn and AddOffsetsToTxn: from here on the contents are on their way."""
    return kafka.with_id(number, transaction=ModelTransaction.ONGOING, staged=staged, written=0)


def end(kafka: Kafka, number: int) -> Kafka:
    """EndTxn is sent."""
    return kafka.with_id(number, ending=True, awaited=True)


def let_go(kafka: Kafka, number: int, owner: int) -> Kafka:
    """A producer is discarded, or dies: its requests stay on their way, and their answers are dropped."""
    kafka = kafka._replace(answers=tuple(other for other in kafka.answers if other != owner))
    return kafka.with_id(number, awaited=False) if kafka.ids[number].holder == owner else kafka


# -- what happens by itself -----------------------------------------------------------------------------


class Moved(NamedTuple):
    """Something that Kafka, the network or the group did."""

    label: str
    kafka: Kafka
    is_fault: bool = False


def moves(spec: Spec, kafka: Kafka) -> list[Moved]:
    """Everything that may happen without a worker."""
    found = [Moved(f"the group gives the lane to {'BA'[kafka.assigned]}", _rebalanced(kafka), is_fault=True)]
    for number, each in enumerate(kafka.ids):
        found += _network(spec, kafka, number, each)
        found += _coordinator(spec, kafka, number, each)
    if kafka.late_offset is not None:
        placed = kafka._replace(offset=kafka.late_offset, late_offset=None)
        found.append(Moved(f"the group coordinator puts position {kafka.late_offset} in place", placed))
    return found


def _rebalanced(kafka: Kafka) -> Kafka:
    return kafka._replace(assigned=1 - kafka.assigned)


def _network(spec: Spec, kafka: Kafka, number: int, each: TransactionalId) -> list[Moved]:
    """Requests that arrive, from the newest producer of the id."""
    found = []
    if each.transaction is ModelTransaction.ONGOING:
        assert each.staged is not None
        parts = each.staged.parts
        if each.written < len(parts):
            part = parts[each.written]
            found.append(
                Moved(f"the broker writes the {part.name.lower()}", _write(spec, kafka, number, part))
            )
        if each.ending:
            found.append(
                Moved("EndTxn arrives: the transaction is committed", _prepare_commit(spec, kafka, number))
            )
    if each.holder is not None:
        label = "an InitProducerId of an attempt given up arrives late: it fences"
        found.append(Moved(label, fence(kafka, number), is_fault=True))
    return found


def _write(spec: Spec, kafka: Kafka, number: int, part: PendingPart) -> Kafka:
    each = kafka.ids[number]
    assert each.staged is not None
    kafka = kafka.with_id(number, written=each.written + 1)
    if part is PendingPart.OFFSETS:
        if spec.offsets_in_transaction:
            return kafka
        return kafka._replace(offset=each.staged.position, read=each.staged.read)
    staged = each.staged
    ids = {PendingPart.ROWS: staged.row, PendingPart.MARKS: staged.ids, PendingPart.OUTPUTS: staged.sends}[
        part
    ]
    marked = part is PendingPart.OUTPUTS and staged.marked
    entry = ModelRecord(ids, staged.position, number, staged.ahead, marked, staged.read)
    return _with_log(kafka, part, (*_log(kafka, part), entry))


def _log(kafka: Kafka, part: PendingPart) -> Log:
    log: Log = getattr(kafka, _LOGS[part])
    return log


def _with_log(kafka: Kafka, part: PendingPart, log: Log) -> Kafka:
    changed: dict[str, Any] = {_LOGS[part]: log}
    return kafka._replace(**changed)


def _prepare_commit(spec: Spec, kafka: Kafka, number: int) -> Kafka:
    each = kafka.ids[number]
    assert each.staged is not None
    assert each.holder is not None
    if each.awaited:
        kafka = kafka._replace(answers=tuple(sorted((*kafka.answers, each.holder))))
    unmarked = each.staged.parts[: each.written]
    if not spec.offsets_in_transaction:
        unmarked = tuple(part for part in unmarked if part is not PendingPart.OFFSETS)
    if not unmarked:
        return _ended(kafka, number)
    state = ModelTransaction.PREPARE_COMMIT
    return kafka.with_id(number, transaction=state, ending=False, awaited=False, unmarked=unmarked)


def _coordinator(spec: Spec, kafka: Kafka, number: int, each: TransactionalId) -> list[Moved]:
    """The transaction's timeout, and markers; the marker of outputs comes with that of the rows."""
    if each.transaction is ModelTransaction.ONGOING:
        return [Moved("the transaction times out: its producer is fenced", fence(kafka, number))]
    if each.transaction is ModelTransaction.PREPARE_ABORT:
        return [Moved("abort markers are written", _aborted(kafka, number))]
    return [
        Moved(f"the commit marker of the {part.name.lower()} is written", _mark(spec, kafka, number, part))
        for part in each.unmarked
        if part is not PendingPart.OUTPUTS
    ]


def _aborted(kafka: Kafka, number: int) -> Kafka:
    for part in _LOGS:
        kept = tuple(entry for entry in _log(kafka, part) if entry.pending != number)
        kafka = _with_log(kafka, part, kept)
    return _ended(kafka, number)


def _ended(kafka: Kafka, number: int) -> Kafka:
    """No transaction is open; who holds the id may begin the next one."""
    return kafka.with_id(number, **TransactionalId(kafka.ids[number].holder)._asdict())


def _mark(spec: Spec, kafka: Kafka, number: int, part: PendingPart) -> Kafka:
    each = kafka.ids[number]
    assert each.staged is not None
    marked = (PendingPart.ROWS, PendingPart.OUTPUTS) if part is PendingPart.ROWS else (part,)
    for log_part in _LOGS.keys() & marked:
        log = _log(kafka, log_part)
        log = tuple(e._replace(pending=None) if e.pending == number else e for e in log)
        kafka = _with_log(kafka, log_part, log)
    if part is PendingPart.OFFSETS:
        late = spec.late_positions
        position = each.staged.position
        kafka = kafka._replace(late_offset=position) if late else kafka._replace(offset=position)
        kafka = kafka._replace(read=each.staged.read)
    unmarked = tuple(other for other in each.unmarked if other not in marked)
    return kafka.with_id(number, unmarked=unmarked) if unmarked else _ended(kafka, number)
