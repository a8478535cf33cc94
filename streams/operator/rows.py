"""Rows that cannot be read, and what operators do about them: they are replaced, or deleted.

An operation is carried out in the row's lane, in the turn of its key, so no handler is at the row meanwhile.
What can be read is the handlers' to change, and is left alone.
"""

from __future__ import annotations

import structlog

from streams.errors import Undecodable, UnknownSchema
from streams.model.application import BoundTable
from streams.model.codecs import decode_row
from streams.model.envelope import RECORD_OVERHEAD, rfc3339
from streams.model.operations import RowCommand, RowDone, RowOperation, encode_done
from streams.model.row_keys import row_key
from streams.ports import TP, Outgoing
from streams.staging.area import StagingArea
from streams.staging.changes import Change
from streams.staging.entry import Entry

log = structlog.get_logger(__name__)


def mend_row(staging: StagingArea, entry: Entry, operation: RowOperation, id_bytes: bytes, now: float) -> str:
    """Stage what an operation does to a row, at `now` in epoch seconds. Returns that in words."""
    result = _mended(staging, entry, operation)
    key, subkey = (part.decode("utf-8", "replace") for part in (operation.key, operation.subkey))
    done = RowDone(
        operation=str(operation.kind),
        id=id_bytes.decode("utf-8", "replace"),
        table=operation.table,
        key=key,
        subkey=subkey,
        partition=entry.partition,
        who=operation.who,
        why=operation.why,
        asked_at=rfc3339(operation.at_ms / 1000),
        at=rfc3339(now),
        result=result,
    )
    to = TP(staging.app.layout.operations_log, 0)
    entry.sends.append((to, Outgoing(operation.table.encode(), encode_done(done), [])))
    row = {"table": operation.table, "row_key": key, "subkey": subkey}
    who = {"who": operation.who, "why": operation.why}
    log.info("operation", operation=str(operation.kind), **row, **who, result=result)
    return result


def _mended(staging: StagingArea, entry: Entry, operation: RowOperation) -> str:
    table = staging.app.tables.get(operation.table)
    if table is None:
        return f"refused: there is no table {operation.table}"
    key = row_key(operation.key, operation.subkey)
    local = entry.prefix + key
    data = staging.value(table.name, local)
    if data is None:
        return "refused: there is no such row"
    if _is_readable(table, data):
        return "refused: the row can be read, so it is for handlers to change"
    limit = staging.app.lane_options.max_message_bytes - RECORD_OVERHEAD
    change, why_not = _change(table, key, operation, limit)
    if change is None:
        return f"refused: {why_not}"
    staging.put(entry, [change])
    staging.unreadable.forget(table.name, local)
    return f"{operation.kind}d: it had {len(data)} bytes, which began with {data[:64].hex() or 'nothing'}"


def _change(table: BoundTable, key: bytes, operation: RowOperation, limit: int) -> tuple[Change | None, str]:
    """The new row, or why it cannot be."""
    if operation.kind is RowCommand.DELETE:
        return Change(table.name, key, None), ""
    value = operation.value or b""
    try:
        row = decode_row(table.codec, value)
    except (Undecodable, UnknownSchema) as error:
        return None, f"what it is to be cannot be read either: {error}"
    if (size := len(key) + len(value)) > limit:
        return None, f"what it is to be has {size} bytes, the limit is {limit}"
    return Change(table.name, key, value, row), ""


def _is_readable(table: BoundTable, data: bytes) -> bool:
    try:
        decode_row(table.codec, data)
    except (Undecodable, UnknownSchema):
        return False
    return True
