"""Details of a timeline beside its messages: changes of rows and rows of the outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from streams.control.base.database_answers import OutboxRows
from streams.control.base.scans import Question
from streams.control.base.view import WorkerView
from streams.control.history.row_changes import MOST_KEYS, row_changes, row_partitions
from streams.control.history.timeline_answers import RowChange, TimelineEntry
from streams.errors import ClusterUnavailable
from streams.model.envelope import epoch_seconds, rfc3339
from streams.ports import Record

#: Messages of one timeline that are looked up in the outbox.
MOST_ASKED = 20
_APART = ("retry", "dead letter")


class Changes(NamedTuple):
    """Changes of rows, and why not all of them are there."""

    changes: list[RowChange]
    stopped: str


async def changes_of(
    view: WorkerView, key: bytes, since_ms: int, messages: Sequence[Record], entries: Sequence[TimelineEntry]
) -> Changes:
    """Versions of the rows of a key, and of keys that its messages went to, since a time; why they are not
    known, where Kafka does not answer. Raises TopicMismatch or PositionLost.
    """
    app = view.application
    others = Counter(record.key for record in messages if record.key and record.key != key)
    keys = (key, *(each for each, _ in others.most_common(MOST_KEYS - 1) if each))
    if not (partitions := row_partitions(app, keys)):
        return Changes([], "")
    try:
        found = await view.scan(Question(partitions, since_ms, keys, rows=True))
    except ClusterUnavailable as error:
        return Changes([], f"Kafka does not answer: {error}")
    stopped = found.stopped
    if stopped and found.until_ms is not None:
        stopped = f"only until {rfc3339(found.until_ms / 1000)}: {stopped}"
    return Changes(row_changes(app, key, messages, entries, found.records), stopped)


async def outbox_of(view: WorkerView, request: str, entries: Sequence[TimelineEntry]) -> OutboxRows:
    """The rows of the messages that nothing here has caused, and of the message that was searched: it may
    wait.
    """
    wanted: dict[str, float] = {request: view.now()}
    for entry in entries:
        if entry.id and not entry.cause and entry.kind not in _APART and len(wanted) < MOST_ASKED:
            wanted[entry.id] = epoch_seconds(entry.time) or 0.0
    return await view.outbox_rows(wanted)


def with_outbox(entries: Sequence[TimelineEntry], rows: OutboxRows) -> list[TimelineEntry]:
    """The entries, each with its row."""
    by_id = {row.id: row for row in rows.rows}
    return [
        msgspec.structs.replace(each, outbox=by_id[each.id])
        if each.id in by_id and each.kind not in _APART
        else each
        for each in entries
    ]
