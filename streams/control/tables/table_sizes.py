"""Sizes of tables, lane by lane, of all workers. No row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from streams.control.base.answers import TableAnswer, TablePart, TablesAnswer
from streams.control.base.others import Others
from streams.control.base.table_fields import ShownTable, shown_tables
from streams.control.base.view import READABLE, WorkerView
from streams.errors import SteadfaustError

TABLES_PATH = "/api/tables"


async def list_tables(view: WorkerView, others: Others[TablesAnswer], only: str = "") -> TablesAnswer:
    """Every table that can be browsed, or the one that is named, with its size in the lanes of all workers.
    Lanes without an answer in time are left out, and named. A worker that answers another one answers for its
    own lanes.
    """
    if others.asked_by is not None:
        return _tables_here(view, only)

    async def here(_: Sequence[int]) -> TablesAnswer:
        return _tables_here(view, only)

    query = {"only": only} if only else {}
    found, silent = await others.all_lanes(view, here, TABLES_PATH, query)
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
        left_out={
            lane: _why(view, lane, found, silent)
            for lane in range(view.application.layout.lanes)
            if lane not in counted
        },
    )


def _why(view: WorkerView, lane: int, found: Sequence[TablesAnswer], silent: Mapping[int, str]) -> str:
    """Why nothing is known of a lane."""
    for left_out in (silent, *(each.left_out for each in found)):
        if lane in left_out:
            return left_out[lane]
    owner = view.assignment.owners.get(lane)
    return f"{owner}: it has sent no sizes, as a worker of an earlier version or one that moves lanes"


def about(table: ShownTable) -> TableAnswer:
    """A table without its size."""
    return TableAnswer(name=table.name, about=table.about, changelog=table.changelog, builtin=table.builtin)


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
