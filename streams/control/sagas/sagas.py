"""Sagas of all lanes, a bounded part at a time: orchestrated ones, and choreographed ones.

A lane's sagas lie in several tables; see `saga_rows`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import uuid_utils

from streams.control.base.lane_rows import Query, cursor_of, place_of
from streams.control.base.others import Others, lane_after_lane
from streams.control.base.paging import decode_limit
from streams.control.base.standby_rows import copy_asked_for, copy_of, staleness
from streams.control.base.view import Problem, WorkerView, readable_store, require_reason
from streams.control.sagas.indexes import is_indexed
from streams.control.sagas.saga_answers import (
    AskedSaga,
    AskSaga,
    SagaAnswer,
    SagasAnswer,
    SagaShown,
    entry_answer,
    step_answer,
)
from streams.control.sagas.saga_rows import (
    SagaFilter,
    SagaKind,
    check_place,
    in_index,
    kinds,
    read_saga,
    sagas_by_index,
    sagas_of_lane,
    wanted_of,
)
from streams.engine.staging.keys import store_key
from streams.model.envelope import FINGERPRINT, new_headers
from streams.model.row_keys import row_key
from streams.ports import TP, Outgoing
from streams.saga.repairs import reason_text

SAGAS_PATH = "/api/sagas"
#: Rows looked at for one answer at most. A saga's row may have a few kilobytes.
MOST_LOOKED_AT = 2_000

# -- questions --------------------------------------------------------------------------------------------


async def list_sagas(view: WorkerView, query: Query, others: Others[SagasAnswer]) -> SagasAnswer:
    """A page of sagas, in order of lane. A lane that does not answer is left out, and named.

    A request of another worker is answered for the lane of the cursor only.
    """
    app, limit = view.application, decode_limit(query.get("limit", ""))
    # What is wrong with it is not a lane's fault.
    check_place(place_of(app, query)[1], wanted_of(query, view.now()))
    if others.asked_by is not None:
        return await _part(view, query, others)
    found: list[SagaAnswer] = []
    looked = 0

    async def part(cursor: str) -> tuple[str, bool]:
        nonlocal looked
        some = await _part(view, {**query, "cursor": cursor, "limit": str(limit - len(found))}, others)
        found.extend(some.sagas)
        looked += some.looked
        return some.next, len(found) >= limit or looked >= MOST_LOOKED_AT

    left_out, cursor = await lane_after_lane(app, query.get("cursor", ""), part, is_checked=True)
    return SagasAnswer(sagas=found, looked=looked, left_out=left_out, next=cursor)


async def show_saga(view: WorkerView, ident: str, query: Query, others: Others[SagaShown]) -> SagaShown:
    """All of one saga, from its owner, or from a copy here if `query` says so. Raises Problem 404 when there
    is none.
    """
    app = view.application
    partition = app.layout.partition_of(_key(ident))
    lane = app.layout.lane_of(partition)
    copied = copy_asked_for(view, {**query, "lane": str(lane)})
    if copied is None and lane not in view.lanes:
        return await others.owner_of(view, lane, path_of(ident), {})
    store = readable_store(view, lane) if copied is None else copy_of(copied)
    for kind in kinds_of(view, ident):
        data = store.get(kind.table, store_key(partition, row_key(_key(ident))))
        if data is None:
            continue
        answer, saga = read_saga(view, kind, ident, data)
        if answer is not None:
            return SagaShown(
                saga=answer,
                steps=[step_answer(step) for step in saga.steps] if saga else [],
                log=[entry_answer(entry) for entry in saga.log] if saga else [],
                entries=saga.entries if saga else 0,
                partition=partition,
                lane=lane,
                owner=view.url,
                operations=copied is None and kind.repairs is not None and saga is not None,
                stale=None if copied is None else staleness(view, copied),
            )
    raise Problem(404, "no_saga", f"there is no saga {ident} at {view.url}, the owner of lane {lane}")


def lane_of_saga(view: WorkerView, ident: str) -> int:
    """Where a saga would be."""
    layout = view.application.layout
    return layout.lane_of(layout.partition_of(_key(ident)))


def path_of(ident: str) -> str:
    """Where workers ask each other for a saga."""
    return f"{SAGAS_PATH}/{quote(ident, safe='')}"


def kinds_of(view: WorkerView, ident: str) -> list[SagaKind]:
    """Where a saga may lie. Raises Problem 404 for a name that there is not."""
    name, colon, _ = ident.partition(":")
    found = [kind for kind in kinds(view) if kind.name == name]
    if not found or not colon:
        names = ", ".join(f"{name}:..." for name in dict.fromkeys(kind.name for kind in kinds(view)))
        raise Problem(404, "no_saga", f"{ident!r} is no saga's id: there are {names or 'no sagas'}")
    return found


async def ask_saga(view: WorkerView, ident: str, request: AskSaga, others: Others[SagaShown]) -> AskedSaga:
    """Send an operator's message to a saga. Raises Problem, and ClusterUnavailable."""
    app = view.application
    require_reason(request.who, request.why)
    if len(request.id) > 200:
        raise Problem(400, "bad_id", "an id has 200 characters at most")
    repairs = next((kind.repairs for kind in kinds_of(view, ident) if kind.repairs is not None), None)
    shown = await show_saga(view, ident, {}, others)
    if repairs is None or not shown.operations:
        how = shown.saga.way or shown.saga.status
        raise Problem(409, "nobody_conducts", f"{ident} is {how}: it takes no operations")
    repair = repairs(
        saga_id=ident,
        operation=request.operation,
        step=_step(request, shown),
        who=request.who,
        why=request.why,
    )
    own_id, codec = request.id or str(uuid_utils.uuid7()), app.routes[repairs.TOPIC].codec
    source = f"{app.layout.app_id}/desk"
    headers = new_headers(repairs.TOPIC, repair.key, source=source, time=view.now(), message_id=own_id)
    headers.append((FINGERPRINT, codec.fingerprint))
    post = Outgoing(repair.key.encode(), codec.encode(repair), headers)
    await view.operate([(TP(repairs.TOPIC, shown.partition), post)])
    return AskedSaga(
        operation=request.operation,
        saga=ident,
        step=repair.step,
        id=own_id,
        said=reason_text(repair),
        entries=shown.entries,
    )


# -- how --------------------------------------------------------------------------------------------------


def _step(request: AskSaga, shown: SagaShown) -> str:
    """The step that is meant; the only one that waits, where none is named."""
    if request.operation == "cancel" or request.step:
        return "" if request.operation == "cancel" else request.step
    waits = shown.saga.waits_for
    if len(waits) == 1:
        return waits[0]
    if not waits:
        why = f"{shown.saga.id} is {shown.saga.status}: it waits for no operator"
        raise Problem(409, "does_not_wait", why)
    raise Problem(400, "which_step", f"{shown.saga.id} waits for {', '.join(waits)}: name the step")


async def _part(view: WorkerView, query: Query, others: Others[SagasAnswer]) -> SagasAnswer:
    """The part of a page from the lane of its cursor."""
    app = view.application
    lane, begin = place_of(app, query)
    if lane not in view.lanes:
        return await others.owner_of(view, lane, SAGAS_PATH, query)
    wanted, limit = wanted_of(query, view.now()), decode_limit(query.get("limit", ""))
    sagas: list[SagaAnswer] = []
    looked = 0
    async for place, answer in await _list_of(view, lane, begin, wanted):
        if looked == MOST_LOOKED_AT or len(sagas) == limit:
            following = cursor_of(app, lane, place)
            return SagasAnswer(sagas=sagas, looked=looked, left_out={}, next=following)
        looked += 1
        if answer is not None:
            sagas.append(answer)
    return SagasAnswer(sagas=sagas, looked=looked, left_out={}, next=cursor_of(app, lane, b""))


async def _list_of(
    view: WorkerView, lane: int, begin: bytes, wanted: SagaFilter
) -> AsyncIterator[tuple[bytes, SagaAnswer | None]]:
    """The list of a lane, from the index where there is one, and it has caught up."""
    if not in_index(begin) and (begin or wanted.all or not await is_indexed(view, lane)):
        return sagas_of_lane(view, lane, begin, wanted)
    return sagas_by_index(view, lane, begin, wanted)


def _key(ident: str) -> bytes:
    return ident.partition(":")[2].encode("utf-8", "surrogateescape")
