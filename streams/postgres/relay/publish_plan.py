"""In which order rows are handed to the publisher."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streams.postgres.outbox import OutboxRow


class PublishPlan(NamedTuple):
    """Rows by what the relay does with them.

    Attributes:
        again: those that were refused before, the first of its aggregate each. Rows behind one wait.
        waves: the others. In a wave all rows of an aggregate are for one topic; the next begins when it has
            been
            written. So an aggregate's rows come to Kafka in their order, though they are for several topics.
    """

    again: list[OutboxRow]
    waves: list[list[OutboxRow]]


def plan(rows: Iterable[OutboxRow]) -> PublishPlan:
    """Plan what to do with rows, which are in the order of their aggregates."""
    again: dict[tuple[str, str], OutboxRow] = {}
    waves: list[list[OutboxRow]] = []
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for row in rows:
        aggregate = row.aggregate
        if aggregate in again:
            continue
        before = last.get(aggregate)
        if before is None and row.attempts:
            again[aggregate] = row
            continue
        wave = 0 if before is None else before[0] + (before[1] != row.topic)
        last[aggregate] = wave, row.topic
        if wave == len(waves):
            waves.append([])
        waves[wave].append(row)
    return PublishPlan(list(again.values()), waves)


def without(rows: Sequence[OutboxRow], aggregates: set[tuple[str, str]]) -> list[OutboxRow]:
    """The rows of other aggregates."""
    return [row for row in rows if row.aggregate not in aggregates] if aggregates else list(rows)
