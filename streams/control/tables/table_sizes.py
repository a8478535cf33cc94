"""Sizes of tables, lane by lane, of all workers. No row is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from streams.control.base.answers import TableAnswer, TablePart, TablesAnswer
from streams.control.base.lane_rows import Query
from streams.control.base.table_fields import ShownTable, shown_tables
from streams.control.base.view import READABLE, Problem, WorkerView
from streams.control.overview.flow import PATIENCE
from streams.errors import SteadfaustError

TABLES_PATH = "/api/tables"
#: Asks a worker for the tables of its lanes: (worker, path, query).
AskOwner = Callable[[str, str, Query], Awaitable[Any]]


async def list_tables(
    view: WorkerView, *, asked_by: str | None, ask: AskOwner, only: str = ""
) -> TablesAnswer:
    """Every table that can be browsed, or the one that is named, with its size in the lanes of all workers.
    Lanes without an answer within a second are left out, and named. A worker that answers another one
    answers for its own lanes.
    """
    own = _tables_here(view, only)
    if asked_by is not None:
        return own
    owners = view.assignment.owners
    others = sorted({url for lane, url in owners.items() if url != view.url and lane not in view.lanes})
    query = {"only": only} if only else {}
    answers = await asyncio.gather(*(_asked(url, query, ask) for url in others))
    silent = {url: each for url, each in zip(others, answers, strict=True) if isinstance(each, str)}
    found = [own, *(each for each in answers if not isinstance(each, str))]
    by_name = {table.name: table for each in found for table in each.tables if not only or table.name == only}
    parts: dict[str, dict[int, TablePart]] = {name: {} for name in by_name}
    for table in (table for each in found for table in each.tables if table.name in by_name):
        for part in table.parts:  # of a lane that moves, two workers may tell: one of them counts
            parts[table.name].setdefault(part.lane, part)
    counted = {lane for each in parts.values() for lane in each}
    return TablesAnswer(
        tables=[
            replace(table, parts=[lanes[lane] for lane in sorted(lanes)])
            for table, lanes in zip(by_name.values(), parts.values(), strict=True)
        ],
        left_out={lane: _why(view, lane, found, silent) for lane in _lanes(view) if lane not in counted},
    )


def _lanes(view: WorkerView) -> range:
    return range(view.application.layout.lanes)


def _why(view: WorkerView, lane: int, found: Sequence[TablesAnswer], silent: Mapping[str, str]) -> str:
    """Why nothing is known of a lane."""
    if why := next((each.left_out[lane] for each in found if lane in each.left_out), ""):
        return why
    owner = view.assignment.owners.get(lane)
    if owner is None:
        return "this worker knows of no owner"
    why = silent.get(owner, "it has sent no sizes, as a worker of an earlier version or one that moves lanes")
    return f"{owner}: {why}"


def about(table: ShownTable) -> TableAnswer:
    """A table without its size."""
    return TableAnswer(name=table.name, about=table.about, changelog=table.changelog, builtin=table.builtin)


async def _asked(url: str, query: Query, ask: AskOwner) -> TablesAnswer | str:
    try:
        async with asyncio.timeout(PATIENCE):
            found: TablesAnswer = await ask(url, TABLES_PATH, query)
    except TimeoutError:
        return f"no answer in {PATIENCE:g} s"
    except Problem as problem:
        return problem.detail
    return found


def _tables_here(view: WorkerView, only: str) -> TablesAnswer:
    app, left_out = view.application, dict[int, str]()
    stores = {}
    for number, lane in sorted(view.lanes.items()):
        if lane.store is not None and lane.state in READABLE:
            stores[number] = lane.store
        else:
            left_out[number] = f"it is {lane.state}"
    local = {name for store in stores.values() for name in store.tables()}
    tables = []
    for table in shown_tables(app, local):
        if only and table.name != only:
            continue
        parts = []
        for number, store in stores.items():
            try:
                size = store.table_size(table.name)
            except SteadfaustError as error:
                left_out[number] = str(error)
                continue
            parts.append(
                TablePart(
                    lane=number,
                    partitions=tuple(app.layout.partitions_of(number)),
                    owner=view.url,
                    standbys=view.assignment.followers.get(number, ()),
                    rows=size.rows,
                    bytes=size.bytes,
                )
            )
        tables.append(replace(about(table), parts=parts))
    return TablesAnswer(tables=tables, left_out=left_out)
