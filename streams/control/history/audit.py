"""The log of operations, for people: who did what about dead letters, handlers and rows, and the result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from streams.control.base.lane_rows import Query
from streams.control.base.view import Problem, WorkerView
from streams.control.base.windows import TopicFacts
from streams.control.history.topics import cursor_of_page, window_of
from streams.ports import TP, Record


class LoggedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the log, of a letter, a handler or a row; `place` is its record's.

    It has what all kinds have, and what one of them has.
    """

    operation: str
    who: str
    why: str
    result: str
    asked_at: str
    at: str
    state: str = ""
    handler: str = ""
    letter: str = ""
    table: str = ""
    subkey: str = ""
    key: str = ""
    topic: str = ""
    partition: int = 0
    job: str = ""
    id: str = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, by the offset of its record; None where the record is no entry.

    Attributes:
        partitions: of an operation on a handler, which each partition does by itself: those that the page
            has with the same result. The entry is that of the first one.
    """

    offset: int
    logged: LoggedOperation | None
    partitions: list[int] = []


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the log of operations, the newest first."""

    topic: str
    letter: str
    entries: list[AuditEntry]
    older: str
    stopped: str
    tail: bool


_decode = msgspec.json.Decoder(LoggedOperation).decode


async def audit_page(view: WorkerView, query: Query) -> AuditPage:
    """A page of operators' operations, or of those on one letter. Raises Problem."""
    app = view.application
    name = app.layout.operations_log
    wanted: dict[str, Any] = {each: query[each] for each in ("before", "limit") if query.get(each)}
    if query.get("letter"):
        wanted["key"] = query["letter"]  # as its records are
    if name not in await view.topic_facts([name]):
        raise Problem(404, "no_topic", f"the cluster has no topic {name}: a worker that starts creates it")
    window = window_of(app, name, TopicFacts(1, 1, {}), wanted)
    seen = await view.browse(window)
    (span,) = seen.spans.values()
    return AuditPage(
        topic=name,
        letter=query.get("letter", ""),
        entries=_joined(_entry(record) for record in seen.records),
        older=cursor_of_page(seen, 0) if span[0] > seen.logs[TP(name, 0)].begin else "",
        stopped=seen.stopped,
        tail=not window.places,
    )


def _entry(record: Record) -> AuditEntry:
    try:
        return AuditEntry(offset=record.offset, logged=_decode(record.value or b""))
    except msgspec.DecodeError:  # anybody may write to a topic; its page shows what it is
        return AuditEntry(offset=record.offset, logged=None)


def _joined(entries: Iterable[AuditEntry]) -> list[AuditEntry]:
    """Merge the partitions' entries of one operation on a handler, by result."""
    found: dict[object, AuditEntry] = {}
    for each in entries:
        done = each.logged
        if done is None or not done.handler or done.letter:
            found[each.offset] = each
            continue
        same = (done.id or each.offset, done.handler, done.result, done.state)
        first = found.setdefault(same, each)
        found[same] = replace(first, partitions=sorted({*first.partitions, done.partition}))
    return list(found.values())
