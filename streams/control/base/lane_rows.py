"""Rows of all lanes, straight from the stores, a bounded part at a time: there may be a million.

A cursor says in which lane and where in it the next part begins. Who owns that lane answers; every worker
knows who that is, so any of them can answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from streams.control.base.paging import after, decode_cursor, encode_cursor
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.engine.staging.keys import store_key
from streams.model.application import Application
from streams.ports import Store

Query = Mapping[str, str]

#: Rows looked at between two turns of the event loop, which lanes share.
AT_ONCE = 100


async def let_others() -> None:
    """Give the loop's other tasks their turn."""
    await asyncio.sleep(0)


async def rows_of(
    view: WorkerView,
    table: str,
    lane: int,
    begin: bytes = b"",
    pause: Callable[[], Awaitable[None]] = let_others,
) -> AsyncIterator[tuple[bytes, bytes]]:
    """A lane's rows from a local key on. Others have their turn in each `pause`, so the lane may go."""
    store = readable_store(view, lane)
    looked = 0
    for partition in view.application.layout.partitions_of(lane):
        first = store_key(partition, b"")
        stop = after(first)
        if stop is not None and stop <= begin:
            continue
        for row in store.scan(table, start=max(first, begin), stop=stop):
            yield row
            looked += 1
            if looked % AT_ONCE == 0:
                await pause()
                check_still_here(view, lane, store)


def check_still_here(view: WorkerView, lane: int, store: Store) -> None:
    """Raises Problem 503 when the lane has gone since its store was looked up."""
    if lane not in view.lanes or readable_store(view, lane) != store:
        raise Problem(503, "lane_not_open", f"lane {lane} has moved meanwhile: ask again")


def lanes_in(view: WorkerView, query: Query) -> list[int]:
    """The lanes that another worker asks for. Raises Problem 400."""
    try:
        lanes = [int(number) for number in query.get("lanes", "").split(",") if number]
    except ValueError:
        lanes = [-1]
    if not all(0 <= number < view.application.layout.lanes for number in lanes):
        raise Problem(400, "bad_lanes", f"lanes is {query['lanes']!r}: give numbers of lanes")
    return lanes


def place_of(app: Application, query: Query) -> tuple[int, bytes]:
    """The lane, and the place in it, that a part begins at. Raises Problem 400."""
    place = decode_cursor(query.get("cursor", ""))
    lane = int.from_bytes(place[:2], "big")
    if lane >= app.layout.lanes:
        raise Problem(400, "bad_cursor", f"there is no lane {lane}")
    return lane, place[2:]


def cursor_of(app: Application, lane: int, at: bytes) -> str:
    """The cursor of what follows: a place in the lane, or the next lane; empty after the last one."""
    if not at:
        lane += 1
    return encode_cursor(lane.to_bytes(2, "big") + at) if lane < app.layout.lanes else ""


def lane_of_cursor(cursor: str) -> int:
    """The lane that a cursor is in."""
    return int.from_bytes(decode_cursor(cursor)[:2], "big")


def age_of(query: Query, name: str) -> float:
    """An age in seconds. Raises Problem 400."""
    try:
        return float(query[name])
    except ValueError:
        raise Problem(400, f"bad_{name}", f"{name} is {query[name]!r}: give an age in seconds") from None
