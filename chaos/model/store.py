"""A worker's RocksDB in the model, and the ways in which it changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chaos.model.kafka import Ids, Kafka, Log, StagedTransaction, stable


class ModelStore(NamedTuple):
    """RocksDB: the row, inbox and position, what is handled above that, how much was read back, and up to
    where each changelog was copied.
    """

    row: Ids = ()
    rows_at: int = 0
    inbox: Ids = ()
    position: int = 0
    marks_at: int = 0
    ahead: Ids = ()
    read: int = 0


def copied_row(store: ModelStore, rows: Log) -> ModelStore:
    """The store after one more record of the rows' changelog."""
    return store._replace(row=rows[store.rows_at].ids, rows_at=store.rows_at + 1)


def copied_mark(store: ModelStore, marks: Log) -> ModelStore:
    """The store after one more record of the changelog of inbox and position."""
    entry = marks[store.marks_at]
    inbox = tuple(sorted({*store.inbox, *entry.ids}))
    return store._replace(
        inbox=inbox,
        position=entry.position,
        ahead=entry.ahead,
        read=entry.read,
        marks_at=store.marks_at + 1,
    )


def rebuilt(kafka: Kafka, rows_at: int, marks_at: int) -> ModelStore:
    """What the changelogs say that a store has at these positions."""
    store = ModelStore()
    for _ in range(rows_at):
        store = copied_row(store, kafka.rows)
    for _ in range(marks_at):
        store = copied_mark(store, kafka.marks)
    return store


def applied(store: ModelStore, staged: StagedTransaction, ends: tuple[int, int]) -> ModelStore:
    """The store after a transaction, in one write batch."""
    inbox = tuple(sorted({*store.inbox, *staged.ids}))
    row, rows_at = (staged.row, ends[0]) if staged.ids else (store.row, store.rows_at)
    return ModelStore(row, rows_at, inbox, staged.position, ends[1], staged.ahead, staged.read)


def copies(store: ModelStore, kafka: Kafka, ends: tuple[int, int]) -> Iterator[tuple[str, ModelStore]]:
    """One more record of a changelog, up to an end and as far as read_committed goes."""
    if store.rows_at < min(ends[0], stable(kafka.rows)):
        yield "copies a record of rows", copied_row(store, kafka.rows)
    if store.marks_at < min(ends[1], stable(kafka.marks)):
        yield "copies a record of inbox and position", copied_mark(store, kafka.marks)


def cut_short(store: ModelStore, kafka: Kafka) -> Iterator[tuple[str, ModelStore]]:
    """What a power failure may leave: less by the last write of a changelog; by more when it comes again."""
    if store.rows_at:
        cut = rebuilt(kafka, store.rows_at - 1, 0)
        yield "the row", store._replace(row=cut.row, rows_at=cut.rows_at)
    if store.marks_at:
        cut = rebuilt(kafka, 0, store.marks_at - 1)
        older = cut._replace(row=store.row, rows_at=store.rows_at)
        yield "inbox and position", older
