"""Changes of steps in the rows of tables, from the tables' changelogs. Pure.

All records of a lane's transaction have one time, so a row and the messages that were sent with it are known
to belong together, and these name the message that caused them. A row that was changed by two messages of one
transaction is in its changelog once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streams.control.base.table_fields import plain, text_of
from streams.control.history.timeline import MOST_SHOWN, topics_of
from streams.control.history.timeline_answers import RowChange, TimelineEntry
from streams.errors import Undecodable, UnknownSchema
from streams.model.application import Application
from streams.model.codecs import decode_row
from streams.model.envelope import CAUSATION, ID, LOOPBACK, rfc3339
from streams.model.row_keys import split_row_key
from streams.ports import TP, Damaged, Record

#: Keys whose rows are looked at for one timeline.
MOST_KEYS = 16
#: Changes of rows in one timeline.
MOST_CHANGES = 500


class Version(NamedTuple):
    """A version of a row, as its changelog has it. `value` is None for one that was removed, and for one that
    cannot be read, where `error` says why.
    """

    record: Record
    table: str
    key: bytes
    subkey: bytes
    value: Any
    error: str


def row_partitions(app: Application, keys: Iterable[bytes]) -> tuple[TP, ...]:
    """Where the rows of keys have their changelogs."""
    numbers = sorted({app.layout.partition_of(key) for key in keys})
    topics = [topic for topic, table in app.changelogs.items() if table in app.tables]
    return tuple(TP(topic, number) for topic in topics for number in numbers)


def version_of(app: Application, record: Record) -> Version:
    """A changelog's record of an application's table as a version of its row."""
    table, data = app.changelogs[record.topic], record.value
    key, subkey = split_row_key(record.key or b"")
    value, error = None, ""
    if isinstance(record, Damaged):
        error = record.why
    elif data is not None and len(data) > MOST_SHOWN:
        error = f"its {len(data):,} bytes are too many to be shown"
    elif data is not None:
        try:
            value = plain(decode_row(app.tables[table].codec, data))
        except (Undecodable, UnknownSchema) as why:
            error = str(why)
    return Version(record, table, key, subkey, value, error)


def row_changes(
    app: Application,
    key: bytes,
    messages: Sequence[Record],
    entries: Sequence[TimelineEntry],
    rows: Iterable[Record],
) -> list[RowChange]:
    """The changes that a timeline's messages made, and all of the rows of `key`, in order of time.

    Arguments:
        messages: the records that the entries are made of.
        rows: records of changelogs, all of the time that is looked at: each one's predecessor is among them.
    """
    steps = _Steps(app, messages, entries)
    found: list[RowChange] = []
    last: dict[tuple[str, bytes, bytes], Version] = {}
    for record in sorted(rows, key=lambda each: (each.timestamp, each.topic, each.partition, each.offset)):
        version = version_of(app, record)
        row = version.table, version.key, version.subkey
        earlier, last[row] = last.get(row), version
        step, sure = steps.of(version)
        if version.key == key or (step and sure):  # of another key only what belongs to this story
            handlers = steps.handlers(step, version.table)
            found.append(RowChange(**change_of(version, earlier), step=step, sure=sure, handlers=handlers))
    return found[-MOST_CHANGES:]


def difference(before: Any, after: Any) -> tuple[Any, Any]:
    """The difference of two values: of dicts and lists the parts, each under its name or place. So the
    names of fields stay, by which what is personal is known.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        return _parts(before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _parts(_placed(before), _placed(after))
    return before, after


def _parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    for name in {**before, **after}:
        if name in before and name in after:
            if before[name] != after[name]:
                old[name], new[name] = difference(before[name], after[name])
        elif name in before:
            old[name] = before[name]
        else:
            new[name] = after[name]
    return old, new


def _placed(values: Sequence[Any]) -> dict[str, Any]:
    return {f"[{place}]": value for place, value in enumerate(values)}


def change_of(version: Version, earlier: Version | None) -> dict[str, Any]:
    """The change from the version before to this one; None: that is not known."""
    before = earlier.value if earlier is not None else None
    old, new = difference(before, version.value)
    return {
        "table": version.table,
        "key": text_of(version.key),
        "subkey": text_of(version.subkey),
        "time": rfc3339(version.record.timestamp / 1000),
        "topic": version.record.topic,
        "partition": version.record.partition,
        "offset": version.record.offset,
        "before": old,
        "after": new,
        "removed": version.record.value is None,
        "is_first": earlier is None,
        "was_removed": earlier is not None and earlier.record.value is None,
        "error": version.error or (earlier.error if earlier is not None else ""),
    }


class _Steps:
    """Finds the entry of a timeline whose handler has changed a row."""

    def __init__(
        self, app: Application, messages: Iterable[Record], entries: Sequence[TimelineEntry]
    ) -> None:
        topics = topics_of(app)
        self._tables: dict[int, dict[str, tuple[str, ...]]] = {}
        self._by_id: dict[str, TimelineEntry] = {}
        self._by_key: dict[str, list[TimelineEntry]] = defaultdict(list)
        for entry in entries:
            self._by_id.setdefault(entry.id, entry)
            route = app.routes.get(topics[entry.topic].topic if entry.topic in topics else entry.topic)
            handlers = () if route is None else route.handlers
            tables: dict[str, tuple[str, ...]] = {}
            for each in handlers:
                for _, table, _, _ in each.rows:
                    tables[table.name] = (*tables.get(table.name, ()), each.name)
            self._tables[entry.number] = tables
            if entry.poison:
                self._tables[entry.number] = {}  # no handler has seen it
            elif tables and entry.kind not in ("retry", "dead letter"):
                self._by_key[entry.key].append(entry)
        #: By the time of a transaction, the ids of the messages that caused what was sent in it, and of those
        #: sent in it that were handled at once.
        self._causes: dict[int, set[str]] = defaultdict(set)
        for record in messages:
            headers = dict(record.headers)
            for name in (CAUSATION, ID) if LOOPBACK in headers else (CAUSATION,):
                if value := headers.get(name):
                    self._causes[record.timestamp].add(text_of(value))

    def handlers(self, number: int, table: str) -> tuple[str, ...]:
        """The handlers of an entry that may write a table."""
        return self._tables.get(number, {}).get(table, ())

    def of(self, version: Version) -> tuple[int, bool]:
        """The entry's number, and whether that is sure: else it is the last one that may have; 0: none."""
        key, ms = text_of(version.key), version.record.timestamp
        named = [self._by_id[each] for each in self._causes.get(ms, ()) if each in self._by_id]
        able = [
            each.number for each in named if each.key == key and version.table in self._tables[each.number]
        ]
        if able:
            return max(able), len(able) == 1
        there = self._by_key.get(key, [])
        at = bisect_right(there, rfc3339(ms / 1000), key=lambda each: each.time)
        before = (each.number for each in reversed(there[:at]) if version.table in self._tables[each.number])
        return next(before, 0), False
