"""Pages of a table's rows, lane after lane, from each lane's owner."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from streams.control.base.answers import BrowseAnswer, RowAnswer
from streams.control.base.lane_rows import Query, cursor_of, place_of
from streams.control.base.others import Others, lane_after_lane
from streams.control.base.paging import decode_cursor, decode_limit, encode_cursor
from streams.control.base.standby_rows import STANDBY, or_standby
from streams.control.base.table_fields import shown_table
from streams.control.base.view import Problem, WorkerView
from streams.control.overview.overview import owners
from streams.control.tables.lookup import EXACT, browse, number_in

#: Why an owner does not answer, where it answers for none of its lanes.
_SILENT = ("owner_silent", "owner_unreachable")


async def browse_all(
    view: WorkerView, name: str, query: Query, others: Others[BrowseAnswer], *, copies: bool = False
) -> BrowseAnswer:
    """A page of the rows in the lanes of all workers, for what a query of `browse` may have.

    A lane that does not answer is left out, and named, unless the query names it; with `copies` its standby
    is read. A request of another worker is answered for this worker's own lanes. Raises Problem.
    """
    shown_table(view.application, name)
    if others.asked_by is not None:
        return browse(view, name, query)
    query = {each: text for each, text in query.items() if each != STANDBY}  # only workers ask so
    lanes = _Lanes(view, name, others, copies=copies)
    lane = _lane_of(view, query)
    return await (lanes.through(query) if lane is None else lanes.one(lane, query))


class _Lanes:
    """The lanes of all workers, for one page. A worker that did not answer for one of its lanes is not waited
    for again.
    """

    def __init__(self, view: WorkerView, name: str, others: Others[BrowseAnswer], *, copies: bool) -> None:
        self._view = view
        self._name = name
        self._others = others
        self._copies = copies
        self._silent: dict[str, Problem] = {}

    async def through(self, query: Query) -> BrowseAnswer:
        """A page from a cursor on, lane after lane."""
        app, limit = self._view.application, decode_limit(query.get("limit", ""))
        rows: list[RowAnswer] = []
        found: dict[int, BrowseAnswer] = {}

        async def part(cursor: str) -> tuple[str, bool]:
            lane, begin = place_of(app, {"cursor": cursor})
            some = {"prefix": query.get("prefix", ""), "limit": str(limit - len(rows)), "lane": str(lane)}
            some |= {EXACT: query[EXACT]} if EXACT in query else {}
            page = found[lane] = await self.one(lane, {**some, "cursor": encode_cursor(begin or None)})
            rows.extend(page.rows)
            return cursor_of(app, lane, decode_cursor(page.next)), len(rows) >= limit

        left_out, cursor = await lane_after_lane(app, query.get("cursor", ""), part)
        return self._page(query, found, left_out, rows, cursor)

    def _page(
        self,
        query: Query,
        found: Mapping[int, BrowseAnswer],
        left_out: dict[int, str],
        rows: list[RowAnswer],
        cursor: str,
    ) -> BrowseAnswer:
        view = self._view
        any_of_them = next(iter(found.values()), None)
        if any_of_them is None:
            any_of_them = browse(view, self._name, {**query, "cursor": "", "limit": "1"})
        return BrowseAnswer(
            table=any_of_them.table,
            owner=view.url,
            lanes=list(found),
            left_out=left_out,
            owners=owners(view),
            rows=rows,
            next=cursor,
            stale=[stale for each in found.values() for stale in each.stale],
        )

    async def one(self, lane: int, query: Query) -> BrowseAnswer:
        """A page of one lane. Raises Problem."""
        view = self._view
        path, copied = f"/api/tables/{self._name}", {**query, "lane": str(lane), STANDBY: "1"}
        owner = view.url if lane in view.lanes else view.assignment.owners.get(lane, "")

        has_told = False

        async def from_owner() -> BrowseAnswer:
            nonlocal has_told
            try:
                found = await self._owned(lane, owner, path, query)
            except Problem as problem:
                has_told = True
                if problem.error in _SILENT:
                    self._silent[owner] = problem
                raise
            has_told = True
            return found

        async def from_here() -> BrowseAnswer:
            return browse(view, self._name, copied)

        if not self._copies:
            return await from_owner()
        found, why = await or_standby(
            view, lane, from_owner, from_here, lambda url: self._others.ask(url, path, copied)
        )
        if not has_told:
            self._silent[owner] = Problem(504, "owner_silent", why)
        return replace(found, stale=[replace(each, why=why) for each in found.stale]) if why else found

    async def _owned(self, lane: int, owner: str, path: str, query: Query) -> BrowseAnswer:
        if owner in self._silent:
            raise self._silent[owner]
        if lane in self._view.lanes:
            return browse(self._view, self._name, query)
        return await self._others.owner_of(self._view, lane, path, query)


def _lane_of(view: WorkerView, query: Query) -> int | None:
    """The one lane of the query. Raises Problem 400."""
    layout = view.application.layout
    partition = number_in(query, "partition", layout.partitions)
    lane = number_in(query, "lane", layout.lanes)
    return layout.lane_of(partition) if partition is not None and lane is None else lane
