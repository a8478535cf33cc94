"""Messages that wait in all lanes, the oldest first, a bounded part at a time: a lane may have a million.

Each owner answers for its lanes from its index; the worker with the page merges the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple

from msgspec.structs import replace

from streams.control.base.asked import asked_text
from streams.control.base.lane_rows import (
    AT_ONCE,
    Query,
    check_still_here,
    lanes_in,
    let_others,
    rows_of,
)
from streams.control.base.others import Others
from streams.control.base.paging import decode_cursor, decode_limit, encode_cursor
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.sagas.indexes import WAITING, index_of, is_indexed, waiting_list
from streams.control.sagas.row_index import counted, entries, is_begun, place_of_row
from streams.control.waiting.causes import kept_for
from streams.control.waiting.queue_answers import order_of, row_of, rows_of_key
from streams.control.waiting.waiting_answers import REASONS, WAITING_PATH, WaitingAnswer, WaitingPage
from streams.engine.staging.changes import QUEUES
from streams.engine.staging.keys import TIME
from streams.ports import Store

#: Queues looked at in each lane for one answer at most.
MOST_LOOKED_AT = 2_000


class WaitingFilter(NamedTuple):
    """Which queues are meant; empty: any. `begin` is the place behind which the page begins."""

    handler: str
    reason: str
    begin: bytes
    limit: int


class _LanePart(NamedTuple):
    """A lane's part of a page: complete up to `until`; empty: to the end."""

    found: list[tuple[bytes, WaitingAnswer]]
    looked: int
    until: bytes = b""
    unsorted: str = ""


async def list_waiting(view: WorkerView, query: Query, others: Others[WaitingPage]) -> WaitingPage:
    """A page of what waits. `query` may have handler, reason, key, limit and cursor. Raises Problem 400.

    With a key, all messages of that key are listed, each with the one before it.
    """
    wanted = _wanted(query)

    async def here(lanes: Sequence[int]) -> WaitingPage:
        return await _of_lanes(view, lanes, query, wanted)

    if others.asked_by is not None:
        return await here(lanes_in(view, query))
    only = None
    if (key := asked_text(query.get("key", ""))) is not None:
        only = [view.application.layout.lane_of_key(key.encode("utf-8", "replace").decode())]
    pages, left_out = await others.all_lanes(view, here, WAITING_PATH, query, only)
    return _merged([*pages, WaitingPage(waiting=[], looked=0, left_out=left_out, next="")], wanted)


def _wanted(query: Query) -> WaitingFilter:
    reason, begin = query.get("reason", ""), decode_cursor(query.get("cursor", ""))
    if reason and reason not in REASONS:
        raise Problem(400, "bad_reason", f"reason is {reason!r}: use {', '.join(REASONS)}")
    if begin and len(begin) < TIME:
        raise Problem(400, "bad_cursor", "the cursor is of another list")
    return WaitingFilter(query.get("handler", ""), reason, begin, decode_limit(query.get("limit", "")))


async def _of_lanes(
    view: WorkerView, lanes: Sequence[int], query: Query, wanted: WaitingFilter
) -> WaitingPage:
    pages = []
    for lane in lanes:
        try:
            part = await (
                _of_key(view, lane, key, wanted)
                if (key := asked_text(query.get("key", ""))) is not None
                else _of_lane(view, lane, wanted)
            )
        except Problem as problem:
            pages.append(WaitingPage(waiting=[], looked=0, left_out={lane: problem.detail}, next=""))
        else:
            pages.append(
                WaitingPage(
                    waiting=[answer for _, answer in part.found],
                    looked=part.looked,
                    left_out={},
                    unsorted={lane: part.unsorted} if part.unsorted else {},
                    next=encode_cursor(part.until or None),
                )
            )
    return _merged(pages, wanted)


def _merged(pages: Sequence[WaitingPage], wanted: WaitingFilter) -> WaitingPage:
    """Pages of different lanes as one, in the order of all. A page with a next one knows nothing of what is
    behind its cursor, so nothing behind the least of these is in the answer.
    """
    ends = [decode_cursor(page.next) for page in pages if page.next]
    end = min(ends, default=b"")
    rows = sorted(
        ((decode_cursor(each.place), each) for page in pages for each in page.waiting),
        key=lambda pair: pair[0],
    )
    rows = [pair for pair in rows if not end or pair[0] <= end]
    following = encode_cursor(end or None)
    if len(rows) > wanted.limit:
        rows = rows[: wanted.limit]
        following = rows[-1][1].place
    left_out = {lane: why for page in pages for lane, why in page.left_out.items()}
    unsorted = {lane: why for page in pages for lane, why in page.unsorted.items()}
    return WaitingPage(
        waiting=[answer for _, answer in rows],
        looked=sum(page.looked for page in pages),
        left_out=dict(sorted(left_out.items())),
        unsorted=dict(sorted(unsorted.items())),
        next=following,
    )


# -- one lane ---------------------------------------------------------------------------------------------


async def _of_lane(view: WorkerView, lane: int, wanted: WaitingFilter) -> _LanePart:
    """The part of a lane: from its index, or, where there is none yet, from so many of its queues."""
    store = readable_store(view, lane)
    up_to_date = await is_indexed(view, lane)
    if not up_to_date and not (view.application.followed and is_begun(store, index_of(view))):
        return await _without_index(view, lane, wanted)
    behind = "" if up_to_date else "it has many changes that are not in its list yet"
    found: list[tuple[bytes, WaitingAnswer]] = []
    place = b""
    for looked, (order, local) in enumerate(_listed(view, store, lane, wanted), start=1):
        if len(found) == wanted.limit or looked > MOST_LOOKED_AT:
            return _LanePart(found, looked, place, behind)
        place = order + local
        row = row_of(view, store, lane, local)
        if row is not None and wanted.reason in ("", row.reason):
            found.append((place, replace(row, place=encode_cursor(place))))
        if looked % AT_ONCE == 0:
            await let_others()
            check_still_here(view, lane, store)
    return _LanePart(found, len(found), b"", behind)


def _listed(
    view: WorkerView, store: Store, lane: int, wanted: WaitingFilter
) -> Iterator[tuple[bytes, bytes]]:
    """The order and the local key of each queue that may be meant, the oldest first."""
    order, local = wanted.begin[:TIME], wanted.begin[TIME:]
    lists = []
    for handler, reason in counted(store, WAITING):
        if wanted.handler not in ("", handler):
            continue
        if reason not in kept_for(wanted.reason, view.lanes[lane].gates.get(handler)):
            continue
        name = waiting_list(handler, reason)
        begin = place_of_row(WAITING, name, QUEUES, local, order) + b"\0" if order else b""
        lists.append(entries(store, WAITING, name, width=TIME, begin=begin))
    for each in merge(*lists, key=lambda each: (each.order, each.local)):
        yield each.order, each.local


async def _without_index(view: WorkerView, lane: int, wanted: WaitingFilter) -> _LanePart:
    store, found, looked, unsorted = readable_store(view, lane), [], 0, ""
    async for local, _ in rows_of(view, QUEUES, lane):
        if looked == MOST_LOOKED_AT:
            unsorted = f"its list is being made: these are of its first {looked} keys"
            break
        looked += 1
        row = row_of(view, store, lane, local)
        if row is None or wanted.handler not in ("", row.handler) or wanted.reason not in ("", row.reason):
            continue
        place = order_of(store, local) + local
        if place > wanted.begin:
            found.append((place, replace(row, place=encode_cursor(place))))
    found.sort(key=lambda pair: pair[0])
    until = found[wanted.limit - 1][0] if len(found) > wanted.limit else b""
    return _LanePart(found[: wanted.limit], looked, until, unsorted)


async def _of_key(view: WorkerView, lane: int, key: str, wanted: WaitingFilter) -> _LanePart:
    """All that waits of a key, each handler's in its order."""
    store, looked = readable_store(view, lane), 0
    found: list[tuple[bytes, WaitingAnswer]] = []
    for number, row in enumerate(rows_of_key(view, store, lane, key.encode("utf-8", "surrogateescape"))):
        looked += 1
        if wanted.handler in ("", row.handler) and wanted.reason in ("", row.reason):
            place = number.to_bytes(TIME, "big")
            if place > wanted.begin:
                found.append((place, replace(row, place=encode_cursor(place))))
        if len(found) > wanted.limit:
            break
    until = found[wanted.limit - 1][0] if len(found) > wanted.limit else b""
    return _LanePart(found[: wanted.limit], looked, until)
