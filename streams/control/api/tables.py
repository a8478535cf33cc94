"""Addresses of tables: all of them, rows page by page, the rows of a key, and what they were."""

from __future__ import annotations

import msgspec

from streams.control.api.web_request import ApiOperation, Read, WebRequest
from streams.control.base.answers import BrowseAnswer, FoundAnswer, TablesAnswer
from streams.control.base.standby_rows import STANDBY, or_standby
from streams.control.history.row_history import row_history
from streams.control.tables.lookup import look_up, rows_path
from streams.control.tables.row_operations import AskRow, ask_row
from streams.control.tables.table_pages import browse_all
from streams.control.tables.table_sizes import TABLES_PATH, list_tables

_decode_ask = msgspec.json.Decoder(AskRow).decode


async def tables(request: WebRequest) -> msgspec.Struct:
    """All tables, with their sizes."""
    return await list_tables(request.view, request.others(TablesAnswer), only=request.query.get("only", ""))


async def table(request: WebRequest) -> msgspec.Struct:
    """A page of rows. The first one has the table's size, too: not every page asks all workers for it."""
    name = request.names["table"]
    found = await browse_all(
        request.view, name, request.query, request.others(BrowseAnswer), copies=request.may_be_stale
    )
    if request.asked_by is not None or request.query.get("cursor"):
        return found
    sizes = await list_tables(request.view, request.others(TablesAnswer), only=name)
    return msgspec.structs.replace(found, table=next(iter(sizes.tables), found.table))


async def rows(request: WebRequest) -> msgspec.Struct:
    """The rows of a key; on a page from a standby, where the owner does not answer. Raises Problem."""
    view, name, query = request.view, request.names["table"], request.rows_query
    others = request.others(FoundAnswer)

    async def from_owner() -> FoundAnswer:
        return await look_up(view, name, query, others)

    if not request.may_be_stale:
        return await from_owner()
    copied = {**query, STANDBY: "1"}
    lane = view.application.layout.lane_of_key(query.get("key", "").encode(errors="replace").decode())
    found, why = await or_standby(
        view,
        lane,
        from_owner,
        lambda: look_up(view, name, copied, others),
        lambda url: others.ask(url, rows_path(name), copied),
    )
    if found.stale is None or not why:
        return found
    return msgspec.structs.replace(found, stale=msgspec.structs.replace(found.stale, why=why))


async def history(request: WebRequest) -> msgspec.Struct:
    """What a row was, version by version. Raises Problem."""
    return await row_history(request.view, request.names["table"], request.query)


async def _mend(request: WebRequest) -> msgspec.Struct:
    return await ask_row(request.view, request.names["table"], request.json(_decode_ask))


ROUTES = (
    Read(TABLES_PATH, tables),
    Read(f"{TABLES_PATH}/{{table}}", table),
    Read(f"{TABLES_PATH}/{{table}}/rows", rows),
    Read(f"{TABLES_PATH}/{{table}}/history", history),
    ApiOperation(f"{TABLES_PATH}/{{table}}/rows/operations", _mend),
)
