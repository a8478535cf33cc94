"""Addresses of tables: all of them, rows page by page, the rows of a key, and what they were."""

from __future__ import annotations

from functools import partial

import msgspec

from streams.web.base.answers import BrowseAnswer, FoundAnswer, TablesAnswer
from streams.web.base.owner import ask_owner
from streams.web.history.row_history import row_history
from streams.web.site.web_request import ApiOperation, Read, WebRequest
from streams.web.tables.lookup import look_up
from streams.web.tables.row_operations import AskRow, ask_row
from streams.web.tables.standby_rows import STANDBY, or_standby
from streams.web.tables.table_pages import browse_all
from streams.web.tables.table_sizes import list_tables

_decode_ask = msgspec.json.Decoder(AskRow).decode


async def _tables(asked: WebRequest) -> msgspec.Struct:
    return await list_tables(asked.view, only=asked.query.get("only", ""), **asked.asker(TablesAnswer))


async def _table(asked: WebRequest) -> msgspec.Struct:
    """A page of rows. The first one has the table's size, too: not every page asks all workers for it."""
    name = asked.names["table"]
    found = await browse_all(
        asked.view, name, asked.query, copies=_may_be_stale(asked), **asked.asker(BrowseAnswer)
    )
    if asked.asked_by is not None or asked.query.get("cursor"):
        return found
    sizes = await list_tables(asked.view, only=name, **asked.asker(TablesAnswer))
    return msgspec.structs.replace(found, table=next(iter(sizes.tables), found.table))


async def _rows(asked: WebRequest) -> msgspec.Struct:
    view, name, query = asked.view, asked.names["table"], dict(asked.query)
    if asked.asked_by is None:
        query.pop(STANDBY, None)  # workers ask so, nobody else
    ask = partial(ask_owner, asked.session, asked_by=view.url)

    async def from_owner() -> FoundAnswer:
        return await look_up(view, name, query, asked_by=asked.asked_by, ask=ask)

    if not _may_be_stale(asked):
        return await from_owner()
    copied = {**query, STANDBY: "1"}
    lane = view.application.layout.lane_of_key(query.get("key", "").encode(errors="replace").decode())
    found, why = await or_standby(
        view,
        lane,
        from_owner,
        lambda: look_up(view, name, copied, asked_by=asked.asked_by, ask=ask),
        lambda url: ask(url, name, copied),
    )
    if found.stale is None or not why:
        return found
    return msgspec.structs.replace(found, stale=msgspec.structs.replace(found.stale, why=why))


def _may_be_stale(asked: WebRequest) -> bool:
    """Whether a standby's rows will do where the owner does not answer: people look, and are told how old
    they are; programs wait for the owner, unless they say `stale=1`.
    """
    return asked.asked_by is None and (not asked.path.startswith("/api/") or bool(asked.query.get("stale")))


async def _history(asked: WebRequest) -> msgspec.Struct:
    return await row_history(asked.view, asked.names["table"], asked.query)


async def _mend(asked: WebRequest) -> msgspec.Struct:
    return await ask_row(asked.view, asked.names["table"], asked.json(_decode_ask))


ROUTES = (
    Read("/tables", _tables, "tables.html"),
    Read("/tables/{table}", _table, "table.html"),
    Read("/tables/{table}/rows", _rows, "rows.html"),
    Read("/tables/{table}/history", _history, "history.html"),
    ApiOperation("/tables/{table}/rows/operations", _mend),
)
