"""Rows of a worker: a table page by page, and one key, from its owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from streams.control.base.answers import BrowseAnswer, FoundAnswer, RowAnswer
from streams.control.base.others import Others
from streams.control.base.paging import (
    Page,
    Range,
    after,
    decode_cursor,
    decode_limit,
    encode_cursor,
    from_cursor,
    partition_range,
    prefix_ranges,
    read_page,
)
from streams.control.base.standby_rows import copy_asked_for, copy_of, staleness
from streams.control.base.table_fields import ShownTable, shown_table
from streams.control.base.view import Problem, StandbyView, WorkerView, readable_store
from streams.control.overview.overview import owners
from streams.control.tables.table_sizes import TABLES_PATH, about
from streams.engine.staging.changes import POSITIONS
from streams.engine.staging.keys import position_key, split_store_key, store_key
from streams.engine.staging.position import Ahead, decode_position
from streams.model.codecs import decode_row
from streams.model.row_keys import row_key
from streams.ports import TP, Store

Query = Mapping[str, str]
#: In a query: values are as msgspec's JSON has them, bytes as base64, for programs that decode them.
EXACT = "exact"
#: In a query: the place of a message, `topic:partition:offset`, that the rows must not be older than.
AFTER = "after"


def rows_path(table: str) -> str:
    """Where workers ask each other for the rows of a key."""
    return f"{TABLES_PATH}/{quote(table, safe='')}/rows"


def browse(view: WorkerView, name: str, query: Query) -> BrowseAnswer:
    """A page of the rows in this worker's lanes. `query` may have cursor, limit, lane, partition, prefix,
    exact.
    """
    table = shown_table(view.application, name)
    prefix = _bytes("prefix", query.get("prefix", ""))
    if prefix and table.builtin:
        raise Problem(400, "no_prefix", f"{name} is not sorted by key: browse it without a prefix")
    begin = decode_cursor(query.get("cursor", ""))
    limit = decode_limit(query.get("limit", ""))
    copied = copy_asked_for(view, query)
    if copied is not None:
        partitions = sorted(view.application.layout.partitions_of(copied.number))
        left_out: dict[int, str] = {}
    else:
        partitions, left_out = _partitions(view, query)
    page = read_page(name, _ranges(view, name, partitions, prefix, begin, copied), limit)
    return BrowseAnswer(
        table=about(table),
        owner=view.url,
        lanes=sorted({view.application.layout.lane_of(partition) for partition in partitions}),
        left_out=left_out,
        owners=owners(view),
        rows=_rows(view, table, page, query),
        next=encode_cursor(page.next),
        stale=[] if copied is None else [staleness(view, copied)],
    )


async def look_up(view: WorkerView, name: str, query: Query, others: Others[FoundAnswer]) -> FoundAnswer:
    """The rows of a key, from its owner. `query` has key, and may have subkey, cursor, limit, exact, after.
    Raises Problem.
    """
    app = view.application
    table = shown_table(app, name)
    if table.builtin:
        raise Problem(400, "no_lookup", f"{name} has no keys of messages: browse it page by page")
    if "key" not in query:
        raise Problem(400, "no_key", f"which key? ask for /tables/{name}/rows?key=...")
    key = _bytes("key", query["key"])
    decode_limit(query.get("limit", ""))
    partition = app.layout.partition_of(key)
    lane = app.layout.lane_of(partition)
    if (copied := copy_asked_for(view, {**query, "lane": str(lane)})) is not None:
        found = _find(view, table, key, query, copy_of(copied))
        return replace(found, stale=staleness(view, copied))
    if lane in view.lanes:
        return _find(view, table, key, query, readable_store(view, lane))
    owner = view.assignment.owners.get(lane)
    if owner is None:
        raise Problem(503, "no_owner", f"lane {lane} has no owner yet: this worker has not joined its group")
    if owner == view.url:
        raise Problem(503, "lane_not_open", f"lane {lane} is opening")
    wanted = {k: query[k] for k in ("key", "subkey", "cursor", "limit", EXACT, AFTER) if k in query}
    return await others.owner_of(view, lane, rows_path(name), wanted)


def _find(view: WorkerView, table: ShownTable, key: bytes, query: Query, store: Store) -> FoundAnswer:
    layout = view.application.layout
    partition = layout.partition_of(key)
    lane = layout.lane_of(partition)
    _check_position(view, store, partition, query.get(AFTER, ""))
    if "subkey" in query:
        exact = store_key(partition, row_key(key, _bytes("subkey", query["subkey"])))
        value = store.get(table.name, exact)
        page = Page([] if value is None else [(exact, value)], None)
    else:
        first = store_key(partition, row_key(key))
        ranges = from_cursor([Range(store, first, after(first))], decode_cursor(query.get("cursor", "")))
        page = read_page(table.name, ranges, decode_limit(query.get("limit", "")))
    if not page.rows and not query.get("cursor"):
        which = f" and subkey {query['subkey']!r}" if "subkey" in query else ""
        raise Problem(
            404,
            "no_row",
            f"{table.name} has no row with key {query['key']!r}{which} at {view.url},"
            f" the owner of lane {lane} (partition {partition})",
        )
    return FoundAnswer(
        table=table.name,
        key=query["key"],
        partition=partition,
        lane=lane,
        owner=view.url,
        rows=_rows(view, table, page, query),
        next=encode_cursor(page.next),
    )


def _check_position(view: WorkerView, store: Store, partition: int, after: str) -> None:
    """Raises Problem 503 while the lane has not committed the message at this place, which passes, and 400
    for a place that does not go with the key.
    """
    if not after:
        return
    topic, _, place = after.rpartition(":")
    topic, _, number = topic.rpartition(":")
    if not (topic and place.isdecimal() and number.isdecimal() and int(number) == partition):
        raise Problem(
            400,
            "bad_after",
            f"after is {after!r}: give topic:partition:offset of a message with this key; the key's partition"
            f" is {partition}",
        )
    name = position_key(TP(topic, partition), view.application.layout.partitions)
    data, offset = store.get(POSITIONS, name), int(place)
    found = None if data is None else decode_position(data)
    if found is None or (found.offset <= offset and offset not in Ahead(found.ahead)):
        at = "nothing" if found is None else f"up to {found.offset}"
        raise Problem(503, "not_yet", f"the lane has committed {at} of {topic}[{partition}], not {offset}")


def _ranges(
    view: WorkerView,
    table: str,
    partitions: list[int],
    prefix: bytes,
    begin: bytes,
    copied: StandbyView | None,
) -> Iterator[Range]:
    for partition in partitions:
        lane = view.application.layout.lane_of(partition)
        store = readable_store(view, lane) if copied is None else copy_of(copied)
        whole = partition_range(store, partition)
        if whole.stop is not None and whole.stop <= begin:
            continue
        found = prefix_ranges(store, table, partition, prefix, begin) if prefix else iter([whole])
        yield from from_cursor(found, begin)


def _partitions(view: WorkerView, query: Query) -> tuple[list[int], dict[int, str]]:
    """The partitions to browse, in order, and the lanes that are left out because they are not open."""
    layout = view.application.layout
    only = number_in(query, "partition", layout.partitions)
    lane = number_in(query, "lane", layout.lanes)
    if only is not None:
        if lane not in (None, layout.lane_of(only)):
            raise Problem(400, "bad_lane", f"partition {only} is of lane {layout.lane_of(only)}, not {lane}")
        lane = layout.lane_of(only)
    if lane is not None:
        _check_here(view, lane)
        return sorted(layout.partitions_of(lane) if only is None else [only]), {}
    partitions: list[int] = []
    left_out: dict[int, str] = {}
    for number in sorted(view.lanes):
        try:
            readable_store(view, number)
            partitions += layout.partitions_of(number)
        except Problem as problem:
            left_out[number] = problem.detail
    return sorted(partitions), left_out


def _check_here(view: WorkerView, lane: int) -> None:
    if lane in view.lanes:
        readable_store(view, lane)
        return
    owner = view.assignment.owners.get(lane)
    if owner in (None, view.url):
        raise Problem(503, "lane_not_open", f"lane {lane} is not open on any worker that this one knows of")
    raise Problem(404, "not_here", f"lane {lane} is on {owner}: browse it there")


def number_in(query: Query, name: str, count: int) -> int | None:
    """A number of a query, below `count`; None where it has none. Raises Problem 400."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < count):
        raise Problem(400, f"bad_{name}", f"{name} is {text!r}: it must be a number from 0 to {count - 1}")
    return int(text)


def _bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, f"bad_{name}", f"{name} is not UTF-8") from error


def _rows(view: WorkerView, table: ShownTable, page: Page, query: Query) -> list[RowAnswer]:
    layout, exact = view.application.layout, bool(query.get(EXACT)) and not table.builtin
    answers = []
    for local_key, data in page.rows:
        partition, changelog_key = split_store_key(local_key)
        fields = table.read(changelog_key, data)
        if exact and not fields.error:
            row = decode_row(view.application.tables[table.name].codec, data)
            fields = fields._replace(value=msgspec.to_builtins(row))
        answers.append(RowAnswer(partition=partition, lane=layout.lane_of(partition), **fields._asdict()))
    return answers
