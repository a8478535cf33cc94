"""The rows that are sagas: which tables have them, how one is read, and the lists of a lane.

A list by status or age comes from an index (docs/adr/0039); all of them, one table after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, get_args

from streams.control.base.lane_rows import AT_ONCE, Query, age_of, check_still_here, let_others, rows_of
from streams.control.base.paging import after
from streams.control.base.table_fields import text_of
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.sagas.row_index import Indexed, IndexedStatus, ListedRow, entries
from streams.control.sagas.saga_answers import UNREADABLE, SagaAnswer, saga_answer, unreadable
from streams.engine.staging.keys import TIME, split_store_key, store_key, time_key
from streams.engine.waiting.dead_letters.row import LetterState, Summary, decode_summary, letters_of
from streams.errors import Undecodable, UnknownSchema
from streams.model.application import Application
from streams.model.codecs import decode_row
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import row_key, split_row_key
from streams.ports import Store
from streams.saga.engine import SagaHandler
from streams.saga.messages import Repair, saga_id
from streams.saga.repairs import awaiting_operator
from streams.saga.state import SagaRow, SagaStatus
from streams.saga.views import ChoreographedSaga, SagaView, orchestrated

#: The fields by which a list can be filtered.
STATUSES = (*get_args(SagaStatus), UNREADABLE)
#: Of those, that of sagas that wait for an operator.
FAILED = "failed"
#: The group of sagas in the index.
SAGAS = "sagas"
#: Of those, an entry says when the saga began; so the oldest come first.
_ENDED = ("completed", "compensated")
#: What a place in an index begins with; a place in a table begins with the number of the table.
_IN_INDEX = b"\xff"


class SagaKind(NamedTuple):
    """The sagas of one table.

    Attributes:
        view: makes the view of (id, row); None for a row that is none of them.
        repairs: the class of operators' messages to them; None: they take none.
    """

    name: str
    table: str
    view: Callable[[str, Any], SagaView | None]
    repairs: type[Repair] | None = None


class SagaFilter(NamedTuple):
    """Which sagas are meant. Times in epoch seconds."""

    status: str
    stalled: bool
    until: float

    @property
    def all(self) -> bool:
        """Whether every saga is meant."""
        return not self.status and not self.stalled and self.until == float("inf")

    @property
    def statuses(self) -> Sequence[str]:
        """The statuses that a saga that is meant may have."""
        if self.status:
            return (self.status,)
        return [each for each in STATUSES if not self.stalled or each not in (*_ENDED, UNREADABLE)]

    def matches(self, saga: SagaAnswer, created_at: float) -> bool:
        """Whether a saga is meant."""
        return (
            self.status in ("", saga.status)
            and created_at <= self.until
            and (saga.stalled or not self.stalled)
        )


def kinds(view: WorkerView) -> list[SagaKind]:
    """All sagas of a worker's application, the orchestrated ones first."""
    return kinds_of_application(view.application, view.choreographed)


def kinds_of_application(app: Application, without: Sequence[ChoreographedSaga]) -> list[SagaKind]:
    """All sagas of an application, the orchestrated ones first, then those `without` an orchestrator."""
    found = []
    for each in app.wiring.handlers():
        if isinstance(each, SagaHandler):
            routed = each.repairs is not None and each.repairs.TOPIC in app.routes
            repairs = each.repairs if routed else None
            table = each.rows["saga"].table.name
            found.append(SagaKind(each.saga, table, partial(_orchestrated, each), repairs))
    return [*found, *(SagaKind(each.name, each.table.name, each.view) for each in without)]


def _orchestrated(handler: SagaHandler, _: str, row: SagaRow) -> SagaView:
    return orchestrated(row, "" if row.ended else handler.why_waits(row))


def wanted_of(query: Query, now: float) -> SagaFilter:
    """The filter of a query: `status`, `stalled`, and `older`, an age in seconds. Raises Problem 400."""
    status = query.get("status", "")
    if status and status not in STATUSES:
        raise Problem(400, "bad_status", f"status is {status!r}: use {', '.join(STATUSES)}")
    until = now - age_of(query, "older") if query.get("older") else float("inf")
    return SagaFilter(status, query.get("stalled", "") not in ("", "0", "false"), until)


# -- a lane's ---------------------------------------------------------------------------------------------


def in_index(place: bytes) -> bool:
    """Whether a place is one of `sagas_by_index`."""
    return place[:1] == _IN_INDEX


def check_place(place: bytes, wanted: SagaFilter) -> None:
    """Raises Problem 400 for a cursor of another list."""
    if in_index(place) and _status_at(place[1:]) not in wanted.statuses:
        raise Problem(400, "bad_cursor", "the cursor is of a list of another status")


def _status_at(place: bytes) -> str:
    """The status of the list that a place of the index is in; empty for none."""
    return b"".join(place.split(b"\0", 2)[1:2]).decode("utf-8", "replace")


async def sagas_by_index(
    view: WorkerView, lane: int, begin: bytes, wanted: SagaFilter
) -> AsyncIterator[tuple[bytes, SagaAnswer | None]]:
    """Every entry that may be of a saga that is meant, by its place in the index; with the saga where it is
    still so. Of each status the oldest come first.
    """
    store, all_kinds = readable_store(view, lane), {kind.table: kind for kind in kinds(view)}
    until = view.now() - view.application.lane_options.saga_limit if wanted.stalled else float("inf")
    until = min(until, wanted.until)
    for looked, found in enumerate(_listed(store, wanted.statuses, begin[1:], until), start=1):
        kind = all_kinds[found.table]
        key = text_of(split_row_key(split_store_key(found.local)[1])[0])
        data, answer, saga = store.get(kind.table, found.local), None, None
        if data is not None:
            answer, saga = read_saga(view, kind, saga_id(kind.name, key), data)
        if answer is not None and not wanted.matches(answer, saga.created_at if saga else 0.0):
            answer = None
        yield _IN_INDEX + found.place, answer
        if looked % AT_ONCE == 0:
            await let_others()
            check_still_here(view, lane, store)


async def first_saga(view: WorkerView, lane: int, statuses: Sequence[str]) -> SagaAnswer | None:
    """The oldest saga of the first of these statuses that a lane has, by the index."""
    for status in statuses:
        async for _, answer in sagas_by_index(view, lane, b"", SagaFilter(status, False, float("inf"))):
            if answer is not None:
                return answer
    return None


def _listed(store: Store, statuses: Sequence[str], begin: bytes, until: float) -> Iterator[ListedRow]:
    """The lists of these statuses, one after the other, from a place on."""
    last = None if until == float("inf") else time_key(max(0, int(until * 1000)))
    there = _status_at(begin)
    for status in statuses[statuses.index(there) if there else 0 :]:
        yield from entries(
            store, SAGAS, status, width=TIME, begin=begin if status == there else b"", until=last
        )


async def sagas_of_lane(
    view: WorkerView,
    lane: int,
    begin: bytes,
    wanted: SagaFilter,
    pause: Callable[[], Awaitable[None]] = let_others,
) -> AsyncIterator[tuple[bytes, SagaAnswer | None]]:
    """Every row that may be a saga, by its place in the lane; with the saga where it is one that is meant."""
    store, all_kinds = readable_store(view, lane), kinds(view)
    first = begin[0] if begin else 0
    for number, kind in enumerate(all_kinds[first:], start=first):
        before = [each.table for each in all_kinds[:number] if each.name == kind.name]
        place = begin[1:] if number == first else b""
        async for local, data in rows_of(view, kind.table, lane, place, pause):
            key, subkey = split_row_key(split_store_key(local)[1])
            answer, saga = None, None
            if not subkey and all(store.get(table, local) is None for table in before):
                answer, saga = read_saga(view, kind, saga_id(kind.name, text_of(key)), data)
            if answer is not None and not wanted.matches(answer, saga.created_at if saga else 0.0):
                answer = None
            yield bytes([number]) + local, answer


def read_saga(
    view: WorkerView, kind: SagaKind, ident: str, data: bytes
) -> tuple[SagaAnswer | None, SagaView | None]:
    """A row as a saga; nothing when it is none."""
    try:
        row = decode_row(view.application.tables[kind.table].codec, data)
    except (Undecodable, UnknownSchema) as error:
        return unreadable(ident, str(error)), None
    saga = kind.view(ident, row)
    limit = view.application.lane_options.saga_limit
    if saga is None:
        return None, None
    waits = awaiting_operator(row) if isinstance(row, SagaRow) else ()
    undoing = tuple(step.name for step in waits if step.undoing)
    return saga_answer(saga, view.now(), limit, undoing), saga


def saga_of_key(
    view: WorkerView, kind: SagaKind, store: Store, partition: int, key: bytes
) -> SagaAnswer | None:
    """The saga of a kind for a key, if there is one, from the store of the key's lane."""
    data = store.get(kind.table, store_key(partition, row_key(key)))
    return None if data is None else read_saga(view, kind, saga_id(kind.name, text_of(key)), data)[0]


# -- the index --------------------------------------------------------------------------------------------


def saga_index(view: WorkerView) -> dict[str, Indexed]:
    """How each table of sagas is indexed."""
    all_kinds, found = kinds(view), {}
    for number, kind in enumerate(all_kinds):
        alike = [each.table for each in all_kinds if each.name == kind.name]
        mine = alike.index(kind.table)
        way = "orchestrated" if number < len(all_kinds) - len(view.choreographed) else "choreographed"
        entry = partial(_entry, view, kind, way, alike[:mine])
        found[kind.table] = Indexed(entry, tuple(alike[mine + 1 :]))
    return found


def _entry(
    view: WorkerView, kind: SagaKind, way: str, before: Sequence[str], store: Store, local: bytes, data: bytes
) -> IndexedStatus | None:
    key, subkey = split_row_key(split_store_key(local)[1])
    if subkey or any(store.get(table, local) is not None for table in before):
        return None
    answer, saga = read_saga(view, kind, saga_id(kind.name, text_of(key)), data)
    if answer is None:
        return None
    began = time_key(max(0, int(saga.created_at * 1000))) if saga else time_key(0)
    return IndexedStatus(SAGAS, answer.status, began, (SAGAS, kind.name, way, answer.status))


def letter_of_saga(store: Store, local: bytes) -> Summary | None:
    """A dead letter of the key of the saga at this local key, which waits for it then."""
    partition, row = split_store_key(local)
    first = store_key(partition, letters_of(split_row_key(row)[0]))
    for _, data in store.scan(DEAD_LETTERS, start=first, stop=after(first)):
        with suppress(ValueError):  # of a later version: the page of dead letters says so
            letter = decode_summary(data)
            if letter.state is not LetterState.DISCARDED:
                return letter
    return None


def stalled_sagas(view: WorkerView, store: Store) -> Iterator[tuple[SagaKind, str, bytes]]:
    """The kind, status and local key of each saga that takes too long, by the index."""
    by_table = {kind.table: kind for kind in kinds(view)}
    until = view.now() - view.application.lane_options.saga_limit
    for found in _listed(store, SagaFilter("", stalled=True, until=until).statuses, b"", until):
        yield by_table[found.table], found.status, found.local
