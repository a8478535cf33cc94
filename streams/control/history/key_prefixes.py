"""Keys that begin with a text, of rows in all lanes: for a search that finds nothing of the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from urllib.parse import urlencode

import msgspec

from streams.control.base.lane_rows import Query
from streams.control.base.others import Others
from streams.control.base.paging import prefix_ranges
from streams.control.base.table_fields import text_of
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.history.holdings import key_bytes
from streams.control.history.timeline_answers import NamedThing
from streams.engine.staging.keys import split_store_key
from streams.model.row_keys import split_row_key

KEYS_PATH = "/api/keys"
#: Keys that are listed at most, and rows of a table in a partition that are looked at for them.
MOST_KEYS, MOST_ROWS = 20, 100


class KeysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that begin with a text, the shortest first."""

    keys: list[str]


async def list_keys(view: WorkerView, query: Query, others: Others[KeysAnswer]) -> KeysAnswer:
    """Keys that begin with `prefix`, of all workers that answer; for another worker those of its lanes."""
    prefix = query.get("prefix", "")
    if not prefix:
        raise Problem(400, "no_prefix", "which keys? ask for /api/keys?prefix=...")

    async def here(_: Sequence[int]) -> KeysAnswer:
        return KeysAnswer(keys=_keys_here(view, key_bytes(prefix)))

    if others.asked_by is not None:
        answers = [await here(())]
    else:  # the overview says which lanes do not answer
        answers, _ = await others.all_lanes(view, here, KEYS_PATH, {"prefix": prefix})
    found = {key for each in answers for key in each.keys}
    return KeysAnswer(keys=sorted(found, key=lambda key: (len(key), key))[:MOST_KEYS])


def named_keys(answer: KeysAnswer) -> list[NamedThing]:
    """The keys, each with its search."""
    return [
        NamedThing(kind="key", name=key, link=f"/search?{urlencode({'q': key}, errors='surrogateescape')}")
        for key in answer.keys
    ]


def _keys_here(view: WorkerView, prefix: bytes) -> list[str]:
    found: set[str] = set()
    for lane in sorted(view.lanes):
        with suppress(Problem):  # it is not open
            store = readable_store(view, lane)
            for table in view.application.tables:
                for partition in view.application.layout.partitions_of(lane):
                    for each, start, stop in prefix_ranges(store, table, partition, prefix, b""):
                        for local, _ in islice(each.scan(table, start=start, stop=stop), MOST_ROWS):
                            found.add(text_of(split_row_key(split_store_key(local)[1])[0]))
                    if len(found) >= MOST_KEYS:
                        return list(found)
    return list(found)
