"""Operations on rows that cannot be read: a row is replaced by one that the operator gives, or deleted."""

from __future__ import annotations

from typing import Any

import msgspec
import uuid_utils

from streams.control.base.view import Problem, WorkerView, require_reason
from streams.errors import Unencodable
from streams.model.application import Application
from streams.model.codecs import encode_row
from streams.model.envelope import new_headers
from streams.model.operations import ROW_OPERATION, RowCommand, RowOperation, encode_operation
from streams.ports import TP, Outgoing


class AskRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a row that cannot be read: what to do, by whom and for what reason; both are
    needed. `row` is what it is to be instead, by the names of its fields. What was requested under the same
    `id` before is not done again.
    """

    operation: RowCommand
    key: str
    subkey: str = ""
    row: dict[str, Any] | None = None
    who: str
    why: str
    id: str = ""


class AskedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The operation, its row and its id. The row's lane settles it, a moment later."""

    operation: str
    table: str
    key: str
    subkey: str
    id: str
    partition: int


async def ask_row(view: WorkerView, table: str, request: AskRow) -> AskedRow:
    """Send an operator's command to the row's partition. Raises Problem, and ClusterUnavailable."""
    app = view.application
    if table not in app.tables:
        raise Problem(404, "unknown_table", f"there is no table {table!r} of rows that can be mended")
    require_reason(request.who, request.why)
    if not request.key or len(request.id) > 200:
        raise Problem(400, "bad_request", "which key? and an id has 200 characters at most")
    own_id, now = request.id or str(uuid_utils.uuid7()), view.now()
    operation = RowOperation(
        kind=request.operation,
        table=table,
        key=_bytes(request.key),
        subkey=_bytes(request.subkey),
        value=_value(app, table, request),
        who=request.who,
        why=request.why,
        at_ms=int(now * 1000),
    )
    headers = new_headers(
        ROW_OPERATION, request.key, source=f"{app.layout.app_id}/desk", time=now, message_id=own_id
    )
    partition = app.layout.partition_of(operation.key)
    post = Outgoing(operation.key, encode_operation(operation), headers)
    await view.operate([(TP(app.layout.operations, partition), post)])
    return AskedRow(
        operation=str(request.operation),
        table=table,
        key=request.key,
        subkey=request.subkey,
        id=own_id,
        partition=partition,
    )


def _value(app: Application, table: str, request: AskRow) -> bytes | None:
    """The row's bytes as they are stored. Raises Problem 400."""
    if request.operation is RowCommand.DELETE:
        if request.row is not None:
            raise Problem(400, "bad_request", "a row that is deleted is given no fields")
        return None
    if request.row is None:
        raise Problem(400, "no_row", "what is the row to be? give its fields")
    kind = app.wiring.tables()[table].row
    try:
        return encode_row(app.tables[table].codec, msgspec.convert(request.row, kind))
    except (msgspec.ValidationError, Unencodable) as error:
        raise Problem(400, "bad_row", f"it is no {kind.__name__}: {error}") from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, "bad_key", "a key or subkey is not UTF-8") from error
