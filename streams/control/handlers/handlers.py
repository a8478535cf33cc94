"""Handlers of all lanes: what they do, who has paused them, and what waits. Each owner answers for its
lanes, so any worker can answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import uuid_utils
from msgspec.structs import replace

from streams.control.base.lane_rows import AT_ONCE, Query, check_still_here, lanes_in
from streams.control.base.others import Others
from streams.control.base.paging import after
from streams.control.base.table_fields import text_of
from streams.control.base.view import Problem, WorkerView, readable_store, require_reason
from streams.control.handlers.awaited_schemas import awaited
from streams.control.handlers.handler_answers import (
    RUNNING,
    AskedHandler,
    AskHandler,
    FailureAnswer,
    HandlerAnswer,
    HandlersAnswer,
    all_handlers,
    newest_failures,
)
from streams.engine.staging.changes import HANDLERS, QUEUES
from streams.engine.staging.keys import split_store_key, store_key
from streams.engine.waiting.gate import Failure, HandlerGate
from streams.engine.waiting.operations.pauses import read_pause
from streams.engine.waiting.queue import read_queue
from streams.model.application import Application
from streams.model.envelope import new_headers, rfc3339
from streams.model.operations import HANDLER_OPERATION, HandlerOperation, HandlerPause, encode_operation
from streams.ports import TP, Outgoing

HANDLERS_PATH = "/api/handlers"
#: Keys of which waiting messages are counted, in each lane.
MOST_COUNTED = 20_000


async def list_handlers(
    view: WorkerView, query: Query, others: Others[HandlersAnswer], handler: str = ""
) -> HandlersAnswer:
    """Every handler, or the one that is named, and of that also what waits for it. Raises Problem.

    A request of another worker is for the lanes that `query` names, and is answered here.
    """
    names = [handler] if handler else sorted(view.application.handlers)
    if handler:
        check_known(view.application, handler)

    async def here(lanes: Sequence[int]) -> HandlersAnswer:
        return await _of_lanes(view, names, lanes, counted=bool(handler))

    if others.asked_by is not None:
        return await here(lanes_in(view, query))
    path = f"{HANDLERS_PATH}/{handler}" if handler else HANDLERS_PATH
    answers, left_out = await others.all_lanes(view, here, path, {})
    known = [_answer_of(name, 0, [], None) for name in names]  # also when no lane answers
    return all_handlers([_answer(view.application, known, left_out), *answers])


def paused_here(view: WorkerView, lane: int) -> dict[tuple[str, int], HandlerPause]:
    """By handler and partition, what is paused in a lane of this worker, as committed. Raises Problem 503."""
    found = {}
    for local, data in readable_store(view, lane).scan(HANDLERS):
        partition, name = split_store_key(local)
        found[name.decode("utf-8", "replace"), partition] = read_pause(data)
    return found


async def ask_handler(view: WorkerView, handler: str, request: AskHandler) -> AskedHandler:
    """Send an operator's command to every partition. Raises Problem, and ClusterUnavailable."""
    app = view.application
    check_known(app, handler)
    require_reason(request.who, request.why)
    if len(request.id) > 200:
        raise Problem(400, "bad_id", "an id has 200 characters at most")
    own_id, now = request.id or str(uuid_utils.uuid7()), view.now()
    operation = HandlerOperation(
        kind=request.operation, handler=handler, who=request.who, why=request.why, at_ms=int(now * 1000)
    )
    headers = new_headers(
        HANDLER_OPERATION, handler, source=f"{app.layout.app_id}/desk", time=now, message_id=own_id
    )
    post = Outgoing(handler.encode(), encode_operation(operation), headers)
    await view.operate([(TP(app.layout.operations, n), post) for n in range(app.layout.partitions)])
    return AskedHandler(
        operation=str(request.operation), handler=handler, id=own_id, partitions=app.layout.partitions
    )


def check_known(app: Application, handler: str) -> None:
    """Raises Problem 404 with the names that there are."""
    if handler not in app.handlers:
        names = ", ".join(sorted(app.handlers))
        raise Problem(404, "no_handler", f"there is no handler {handler!r}: there are {names}")


async def _of_lanes(
    view: WorkerView, names: Sequence[str], lanes: Sequence[int], *, counted: bool
) -> HandlersAnswer:
    app = view.application
    parts = [_answer(app, [], {})]
    for lane in lanes:
        try:
            parts.append(_answer(app, await _of_lane(view, names, lane, counted=counted), {}))
        except Problem as problem:
            parts.append(_answer(app, [], {lane: problem.detail}))
    return all_handlers(parts)


async def _of_lane(
    view: WorkerView, names: Sequence[str], lane: int, *, counted: bool
) -> list[HandlerAnswer]:
    if lane not in view.lanes:
        raise Problem(503, "lane_not_open", f"lane {lane} is not on {view.url}")
    gates, pauses = view.lanes[lane].gates, paused_here(view, lane)
    partitions = len(view.application.layout.partitions_of(lane))
    answers = []
    for name in names:
        found = [pause for (paused, _), pause in pauses.items() if paused == name]
        answer = _answer_of(name, partitions, found, gates.get(name))
        if counted:
            waiting, all_of_them = await _waiting(view, lane, name)
            answer = replace(answer, waiting=waiting, counted_all=all_of_them)
        answers.append(answer)
    return answers


def _answer_of(
    name: str, partitions: int, found: Sequence[HandlerPause], gate: HandlerGate | None
) -> HandlerAnswer:
    newest = max(found, key=lambda pause: pause.since_ms, default=None)
    states = Counter(str(pause.state) for pause in found) + Counter({RUNNING: partitions - len(found)})
    return HandlerAnswer(
        handler=name,
        partitions=dict(states),
        since="" if newest is None else rfc3339(newest.since_ms / 1000),
        who="" if newest is None else newest.who,
        why="" if newest is None else newest.why,
        breakers={} if gate is None else {str(gate.breaker.state): 1},
        keys=0 if gate is None else len(gate.queues),
        attempts=0 if gate is None else gate.under_way,
        waiting={},
        counted_all=True,
        schemas=[] if gate is None else awaited([gate]),
        failures=[] if gate is None else newest_failures([map(_failure, gate.failures)]),
    )


def _failure(failure: Failure) -> FailureAnswer:
    return FailureAnswer(
        at=rfc3339(failure.at), key=text_of(failure.key), error=failure.error, decision=failure.decision
    )


async def _waiting(view: WorkerView, lane: int, name: str) -> tuple[dict[str, int], bool]:
    """Messages that wait, by reason, and whether these are all. Others have their turn meanwhile."""
    store, counts, looked = readable_store(view, lane), Counter[str](), 0
    for partition in view.application.layout.partitions_of(lane):
        first = store_key(partition, name.encode() + b"\0")
        for _, data in store.scan(QUEUES, start=first, stop=after(first)):
            if looked == MOST_COUNTED:
                return dict(counts), False
            with suppress(ValueError):  # the lane says so
                queue = read_queue(data)
                counts[str(queue.reason)] += queue.waits
            looked += 1
            if looked % AT_ONCE == 0:
                await asyncio.sleep(0)
                check_still_here(view, lane, store)
    return dict(counts), True


def _answer(app: Application, handlers: list[HandlerAnswer], left_out: dict[int, str]) -> HandlersAnswer:
    return HandlersAnswer(
        handlers=handlers,
        partitions=app.layout.partitions,
        left_out=left_out,
        max_waiting=app.lane_options.max_waiting,
        max_waiting_bytes=app.lane_options.max_waiting_bytes,
    )
