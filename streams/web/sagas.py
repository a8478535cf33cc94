"""Sagas of all lanes, a bounded part at a time: those that a definition conducts, and those that nobody does.

A lane's sagas lie in several tables, one after the other; a place in it begins with the number of the table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, get_args
from urllib.parse import quote

import uuid_utils

from streams.errors import Undecodable, UnknownSchema
from streams.model.codecs import decode_row
from streams.model.envelope import FINGERPRINT, new_headers
from streams.model.table import row_key, split_row_key
from streams.ports import TP, Outgoing, Store
from streams.saga.engine import SagaHandler
from streams.saga.messages import Repair, saga_id
from streams.saga.repairs import reason_text
from streams.saga.state import SagaStatus
from streams.saga.views import SagaView, orchestrated
from streams.staging.keys import split_store_key, store_key
from streams.web.lane_rows import AskOwner, Query, age_of, cursor_of, elsewhere, let_others, place_of, rows_of
from streams.web.paging import decode_limit
from streams.web.saga_answers import (
    UNREADABLE,
    AskedSaga,
    AskSaga,
    SagaAnswer,
    SagasAnswer,
    SagaShown,
    entry_answer,
    saga_answer,
    step_answer,
    unreadable,
)
from streams.web.shown import text_of
from streams.web.view import Problem, WorkerView, readable_store

SAGAS_PATH = "/api/sagas"
#: Rows looked at for one answer at most. A saga's row may have a few kilobytes.
MOST_LOOKED_AT = 2_000
#: What a list can be asked for by.
STATUSES = (*get_args(SagaStatus), UNREADABLE)


class SagaKind(NamedTuple):
    """The sagas of one table.

    Attributes:
        view: makes the view of (id, row); None for a row that is none of them.
        repairs: what operators' messages to them are; None: nobody takes any.
    """

    name: str
    table: str
    view: Callable[[str, Any], SagaView | None]
    repairs: type[Repair] | None = None


class Wanted(NamedTuple):
    """Which sagas are meant. Times in epoch seconds."""

    status: str
    stalled: bool
    until: float

    def matches(self, saga: SagaAnswer, created_at: float) -> bool:
        """Whether a saga is meant."""
        return (
            self.status in ("", saga.status)
            and created_at <= self.until
            and (saga.stalled or not self.stalled)
        )


def kinds(view: WorkerView) -> list[SagaKind]:
    """All sagas of an application, the orchestrated ones first."""
    app, found = view.application, []
    for each in app.wiring.handlers():
        if isinstance(each, SagaHandler):
            heard = each.repairs is not None and each.repairs.TOPIC in app.routes
            repairs = each.repairs if heard else None
            found.append(
                SagaKind(each.saga, each.rows["saga"].table.name, lambda _, row: orchestrated(row), repairs)
            )
    return [*found, *(SagaKind(each.name, each.table.name, each.view) for each in view.choreographed)]


def wanted_of(query: Query, now: float) -> Wanted:
    """What a query asks for: `status`, `stalled`, and `older`, an age in seconds. Raises Problem 400."""
    status = query.get("status", "")
    if status and status not in STATUSES:
        raise Problem(400, "bad_status", f"status is {status!r}: use {', '.join(STATUSES)}")
    until = now - age_of(query, "older") if query.get("older") else float("inf")
    return Wanted(status, query.get("stalled", "") not in ("", "0", "false"), until)


# -- questions --------------------------------------------------------------------------------------------


async def list_sagas(view: WorkerView, query: Query, *, asked_by: str | None, ask: AskOwner) -> SagasAnswer:
    """A page of sagas, in order of lane. A lane that does not answer is left out, and named.

    A worker that is asked by another one answers for the lane of the cursor only.
    """
    app, limit = view.application, decode_limit(query.get("limit", ""))
    wanted_of(query, view.now())  # what is wrong with it is not a lane's fault
    if asked_by is not None:
        return await _part(view, query, asked_by, ask)
    found: list[SagaAnswer] = []
    left_out: dict[int, str] = {}
    looked, cursor = 0, query.get("cursor", "")
    while True:
        lane, _ = place_of(app, {"cursor": cursor})
        try:
            part = await _part(view, {**query, "cursor": cursor, "limit": str(limit - len(found))}, None, ask)
        except Problem as problem:
            left_out[lane] = problem.detail
            cursor = cursor_of(app, lane, b"")
        else:
            found += part.sagas
            looked += part.looked
            cursor = part.next
        if not cursor or len(found) >= limit or looked >= MOST_LOOKED_AT:
            return SagasAnswer(sagas=found, looked=looked, left_out=left_out, next=cursor)


async def show_saga(view: WorkerView, ident: str, *, asked_by: str | None, ask: AskOwner) -> SagaShown:
    """All of one saga, asked of its owner. Raises Problem 404 when there is none."""
    app = view.application
    partition = app.layout.partition_of(_key(ident))
    lane = app.layout.lane_of(partition)
    if lane not in view.lanes:
        path = f"{SAGAS_PATH}/{quote(ident, safe='')}"
        found: SagaShown = await elsewhere(view, lane, path, {}, asked_by, ask)
        return found
    store = readable_store(view, lane)
    for kind in kinds_of(view, ident):
        data = store.get(kind.table, store_key(partition, row_key(_key(ident))))
        if data is None:
            continue
        answer, saga = _read(view, kind, ident, data)
        if answer is not None:
            return SagaShown(
                saga=answer,
                steps=[step_answer(step) for step in saga.steps] if saga else [],
                log=[entry_answer(entry) for entry in saga.log] if saga else [],
                entries=saga.entries if saga else 0,
                partition=partition,
                lane=lane,
                owner=view.url,
                operations=kind.repairs is not None and saga is not None,
            )
    raise Problem(404, "no_saga", f"there is no saga {ident}: asked {view.url}, the owner of lane {lane}")


def saga_of_key(
    view: WorkerView, kind: SagaKind, store: Store, partition: int, key: bytes
) -> SagaAnswer | None:
    """The saga of a kind for a key, if there is one, from the store of the key's lane."""
    data = store.get(kind.table, store_key(partition, row_key(key)))
    return None if data is None else _read(view, kind, saga_id(kind.name, text_of(key)), data)[0]


def kinds_of(view: WorkerView, ident: str) -> list[SagaKind]:
    """Where a saga may lie. Raises Problem 404 for a name that there is not."""
    name, colon, _ = ident.partition(":")
    found = [kind for kind in kinds(view) if kind.name == name]
    if not found or not colon:
        names = ", ".join(f"{name}:..." for name in dict.fromkeys(kind.name for kind in kinds(view)))
        raise Problem(404, "no_saga", f"{ident!r} is no saga's id: there are {names or 'no sagas'}")
    return found


async def ask_saga(view: WorkerView, ident: str, asked: AskSaga, *, ask: AskOwner) -> AskedSaga:
    """Send an operator's message to a saga. Raises Problem, and ClusterUnavailable."""
    app = view.application
    if not asked.who.strip() or not asked.why.strip():
        raise Problem(400, "no_reason", "who asks, and why? both are kept in the saga's log")
    if len(asked.id) > 200:
        raise Problem(400, "bad_id", "an id has 200 characters at most")
    repairs = next((kind.repairs for kind in kinds_of(view, ident) if kind.repairs is not None), None)
    shown = await show_saga(view, ident, asked_by=None, ask=ask)
    if repairs is None or not shown.operations:
        how = shown.saga.way or shown.saga.status
        raise Problem(409, "nobody_conducts", f"{ident} is {how}: nobody takes operations on it")
    repair = repairs(
        saga_id=ident, operation=asked.operation, step=_step(asked, shown), who=asked.who, why=asked.why
    )
    own_id, codec = asked.id or str(uuid_utils.uuid7()), app.routes[repairs.TOPIC].codec
    source = f"{app.layout.app_id}/desk"
    headers = new_headers(repairs.TOPIC, repair.key, source=source, time=view.now(), message_id=own_id)
    headers.append((FINGERPRINT, codec.fingerprint))
    post = Outgoing(repair.key.encode(), codec.encode(repair), headers)
    await view.operate([(TP(repairs.TOPIC, shown.partition), post)])
    return AskedSaga(
        operation=asked.operation,
        saga=ident,
        step=repair.step,
        id=own_id,
        said=reason_text(repair),
        entries=shown.entries,
    )


# -- how --------------------------------------------------------------------------------------------------


def _step(asked: AskSaga, shown: SagaShown) -> str:
    """The step that is meant; the only one that waits, where none is named."""
    if asked.operation == "cancel" or asked.step:
        return "" if asked.operation == "cancel" else asked.step
    waits = shown.saga.waits_for
    if len(waits) == 1:
        return waits[0]
    if not waits:
        raise Problem(409, "does_not_wait", f"{shown.saga.id} is {shown.saga.status}: it waits for nobody")
    raise Problem(400, "which_step", f"{shown.saga.id} waits for {', '.join(waits)}: name the step")


async def _part(view: WorkerView, query: Query, asked_by: str | None, ask: AskOwner) -> SagasAnswer:
    """What of a page is in the lane of its cursor."""
    app = view.application
    lane, begin = place_of(app, query)
    if lane not in view.lanes:
        found: SagasAnswer = await elsewhere(view, lane, SAGAS_PATH, query, asked_by, ask)
        return found
    wanted, limit = wanted_of(query, view.now()), decode_limit(query.get("limit", ""))
    sagas: list[SagaAnswer] = []
    looked = 0
    async for place, answer in sagas_of_lane(view, lane, begin, wanted):
        if looked == MOST_LOOKED_AT or len(sagas) == limit:
            following = cursor_of(app, lane, place)
            return SagasAnswer(sagas=sagas, looked=looked, left_out={}, next=following)
        looked += 1
        if answer is not None:
            sagas.append(answer)
    return SagasAnswer(sagas=sagas, looked=looked, left_out={}, next=cursor_of(app, lane, b""))


async def sagas_of_lane(
    view: WorkerView,
    lane: int,
    begin: bytes,
    wanted: Wanted,
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
                answer, saga = _read(view, kind, saga_id(kind.name, text_of(key)), data)
            if answer is not None and not wanted.matches(answer, saga.created_at if saga else 0.0):
                answer = None
            yield bytes([number]) + local, answer


def _read(
    view: WorkerView, kind: SagaKind, ident: str, data: bytes
) -> tuple[SagaAnswer | None, SagaView | None]:
    """A row as a saga; nothing when it is none."""
    try:
        row = decode_row(view.application.tables[kind.table].codec, data)
    except (Undecodable, UnknownSchema) as error:
        return unreadable(ident, str(error)), None
    saga = kind.view(ident, row)
    limit = view.application.lane_options.saga_limit
    return (saga_answer(saga, view.now(), limit), saga) if saga is not None else (None, None)


def _key(ident: str) -> bytes:
    return ident.partition(":")[2].encode("utf-8", "surrogateescape")
