"""Erase a key's data in a lane: rows, dead letters, timers and waiting messages, in one transaction.

One operation erases at most MOST_ROWS rows and letters, and reports if there are more. It is carried out in
the turn of the key, so no handler uses the data meanwhile. Ids in the inbox stay: they only tell that a
message was handled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import structlog

from streams.engine.staging.area import StagingArea
from streams.engine.staging.changes import TIMERS, Change
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import TIMER, local_lane_key, name_in, split_local_lane_key
from streams.engine.staging.timers import remove_timer, timer_name
from streams.engine.waiting.dead_letters.row import letters_of
from streams.engine.waiting.operations.pauses import in_log
from streams.engine.waiting.waiting import Waiting
from streams.errors import RowUnreadable
from streams.model.claim import BadReference, claim_in
from streams.model.envelope import rfc3339
from streams.model.layout import DEAD_LETTERS, LANE
from streams.model.operations import KeyCommand, KeyDone, KeyOperation
from streams.model.row_keys import row_key
from streams.ports import Record

log = structlog.get_logger(__name__)

#: Maximum rows and letters for one operation, so that its transaction ends well within the brokers' timeout.
MOST_ROWS = 20_000
#: Maximum names of objects that the log of operations has for one operation.
MOST_OBJECTS = 500


def erase_key(waiting: Waiting, entry: Entry, operation: KeyOperation, id_bytes: bytes, now: float) -> str:
    """Stage the removal of a key's data in a partition, or only count it, at `now` in epoch seconds. Returns
    the result in words. The record in the log of operations does not name the key, because it is kept for a
    year.
    """
    erases = operation.kind is KeyCommand.ERASE
    staging, key = waiting.staging, operation.key
    found: Counter[str] = Counter()
    changes: list[Change] = []
    objects: dict[str, None] = {}
    for table, local in islice(_rows(staging, entry.prefix, key), MOST_ROWS if erases else None):
        letter = waiting.letters.get(local) if table == DEAD_LETTERS else None
        if letter is not None:
            _note_object(staging, letter.record, objects)
        elif erases:
            staging.unreadable.forget(table, local)
        changes.append(Change(table, name_in(local), None))
        found[table] += 1
    more = erases and len(changes) == MOST_ROWS
    for handler in () if more else staging.app.handlers.values():
        for timer in _timers(staging, entry.prefix + timer_name(handler.name_bytes, key, "")):
            changes.append(remove_timer(name_in(timer)))
            found["timers"] += 1
        for local, queue in list(waiting.queues.of_key(entry.prefix, handler.name_bytes, key)):
            found["waiting"] += queue.waits
            for number in (*range(queue.first, queue.next), *queue.numbers):
                try:
                    _note_object(staging, waiting.queues.message(local, number), objects)
                except RowUnreadable:
                    continue
            if erases:
                waiting.erase(entry, local, queue)
    if erases:
        staging.put(entry, changes)
    counts = ", ".join(f"{count} {what}" for what, count in found.items()) or "nothing"
    result = f"{'erased' if erases else 'found'} {counts}{'; there is more' if more else ''}"
    done = KeyDone(
        operation=str(operation.kind),
        id=id_bytes.decode("utf-8", "replace"),
        partition=entry.partition,
        who=operation.who,
        why=operation.why,
        asked_at=rfc3339(operation.at_ms / 1000),
        at=rfc3339(now),
        result=result,
        found=dict(found),
        objects=list(objects)[:MOST_OBJECTS],
        more=more,
    )
    entry.sends.append(in_log(staging, None, done))
    log.info("operation", operation=str(operation.kind), who=operation.who, why=operation.why, **found)
    return result


def _rows(staging: StagingArea, prefix: bytes, key: bytes) -> Iterator[tuple[str, bytes]]:
    """The tables and local keys of a key's rows and dead letters."""
    starts = [*((table, row_key(key)) for table in staging.app.tables), (DEAD_LETTERS, letters_of(key))]
    for table, start in starts:
        yield from ((table, local) for local in _with_prefix(staging, table, prefix + start))


def _with_prefix(staging: StagingArea, table: str, prefix: bytes) -> Iterator[bytes]:
    """The local keys of a table's rows with a prefix, staged or committed."""
    found = {local for local, _ in staging.changes(table) if local.startswith(prefix)}
    for local, _ in staging.store.scan(table, start=prefix):
        if not local.startswith(prefix):
            break
        found.add(local)
    yield from (local for local in sorted(found) if staging.value(table, local) is not None)


def _timers(staging: StagingArea, prefix: bytes) -> Iterator[bytes]:
    """The local names of timers with a prefix, staged or committed."""
    names = (split_local_lane_key(local) for local, _ in staging.changes(LANE))
    found = {name for kind, name in names if kind == TIMER and name.startswith(prefix)}
    for name, _ in staging.store.scan(TIMERS, start=prefix):
        if not name.startswith(prefix):
            break
        found.add(name)
    for name in sorted(found):
        staged = staging.get(LANE, local_lane_key(TIMER, name))
        if staged is None or staged.value is not None:
            yield name


def _note_object(staging: StagingArea, record: Record, objects: dict[str, None]) -> None:
    if staging.app.wiring.is_source(record.topic):
        return  # its headers are others'
    try:
        claim = claim_in(dict(record.headers))
    except BadReference:
        return
    if claim is not None:
        objects[claim.name] = None
