"""Earlier versions of a row, as its table's changelog still has them."""

from __future__ import annotations

from streams.control.base.lane_rows import Query
from streams.control.base.table_fields import shown_table
from streams.control.base.view import Problem, WorkerView
from streams.control.base.windows import Window
from streams.control.history.holdings import key_bytes
from streams.control.history.row_changes import Version, change_of, version_of
from streams.control.history.timeline_answers import HistoryAnswer, RowChange
from streams.control.history.topics import cursor_of_page
from streams.model.row_keys import row_key
from streams.ports import TP

#: Versions on a page.
VERSIONS = 20


async def row_history(view: WorkerView, name: str, query: Query) -> HistoryAnswer:
    """The last versions of a key's rows, the newest first, or of one of them: `query` has key, and may have
    subkey. Any worker reads them, from Kafka. Raises Problem, and what `WorkerView.browse` does.
    """
    app = view.application
    table = shown_table(app, name)
    if table.builtin:
        raise Problem(400, "no_history", f"{name} has no keys of messages: see the topic {table.changelog}")
    if "key" not in query:
        raise Problem(400, "no_key", f"which key? ask for /tables/{name}/history?key=...")
    key = key_bytes(query["key"])
    place = TP(table.changelog, app.layout.partition_of(key))
    subkey = query.get("subkey")
    wanted = None if subkey is None else row_key(key, subkey.encode("utf-8", "surrogateescape"))
    window = Window((place,), {}, backwards=True, limit=VERSIONS, key=key, rows=True, row=wanted)
    seen = await view.browse(window)
    versions: list[RowChange] = []
    earlier: dict[bytes, Version] = {}
    for record in reversed(seen.records):
        version = version_of(app, record)
        before = earlier.get(version.subkey)
        earlier[version.subkey] = version
        versions.append(RowChange(**change_of(version, before)))
    begin, first = seen.logs[place].begin, seen.spans[place][0]
    return HistoryAnswer(
        table=name,
        key=query["key"],
        subkey=subkey,
        topic=table.changelog,
        partition=place.partition,
        versions=versions[::-1],
        whole=first <= begin and not seen.stopped,
        older="" if first <= begin else cursor_of_page(seen, 0),
        stopped=seen.stopped,
    )
