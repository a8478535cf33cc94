"""A queue as it is shown: its first message that waits, and those behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from streams.control.base.paging import after
from streams.control.base.table_fields import text_of
from streams.control.base.view import WorkerView
from streams.control.sagas.indexes import WAITING, first_waiting
from streams.control.sagas.row_index import counted
from streams.control.waiting.causes import Cause, cause_of
from streams.control.waiting.waiting_answers import WaitingAnswer
from streams.engine.staging.changes import MESSAGES, QUEUES
from streams.engine.staging.keys import name_in, split_store_key, store_key, time_key
from streams.engine.waiting.dead_letters.row import Summary, decode_summary, letter_id, letter_places
from streams.engine.waiting.queue import (
    REPLAYED,
    Reason,
    WaitingMessage,
    WaitingQueue,
    handler_of,
    queue_name,
    read_message,
    read_queue,
)
from streams.model.application import Application
from streams.model.envelope import ID, TYPE, rfc3339
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import split_row_key
from streams.ports import Store

#: Messages of one key that are listed behind the first one, of each handler.
MOST_BEHIND = 100


def rows_of_key(
    view: WorkerView,
    store: Store,
    lane: int,
    key: bytes,
    *,
    behind: int = MOST_BEHIND,
    partition: int | None = None,
) -> Iterator[WaitingAnswer]:
    """Queues of a key: of each queue the first message, then `behind` of those that it holds back. Without a
    `partition` in that of the key: records of a source are elsewhere.
    """
    if partition is None:
        partition = view.application.layout.partition_of(key)
    gone = {handler for handler, _ in counted(store, WAITING)}
    for handler in dict.fromkeys([*view.application.handlers, *sorted(gone)]):
        first = store_key(partition, queue_name(handler.encode(), key))
        for local, _ in store.scan(QUEUES, start=first, stop=after(first)):
            row = row_of(view, store, lane, local)
            if row is not None:
                yield row
                yield from _behind(view, store, lane, local, row, behind)


def _behind(
    view: WorkerView, store: Store, lane: int, local: bytes, first: WaitingAnswer, most: int
) -> Iterator[WaitingAnswer]:
    """The messages that the first one of a queue holds back."""
    with suppress(ValueError):  # the first one says so
        queue = read_queue(store.get(QUEUES, local) or b"")
        replays = [number for number in queue.numbers if number & REPLAYED]
        numbers = [*replays, *range(queue.first + queue.holds_back, queue.next)]
        cause = Cause("behind", f"behind {first.type} {first.id}", "that is handled, or given up")
        for left, number in enumerate(numbers[1 : 1 + most], start=1):
            message = read_message(store.get(MESSAGES, local + number.to_bytes(8, "big")) or b"")
            yield _answer(view, lane, local, queue, message, cause, behind=first.behind - left)


def row_of(view: WorkerView, store: Store, lane: int, local: bytes) -> WaitingAnswer | None:
    """The first message of a queue as it is now; None: it waits no longer."""
    data = store.get(QUEUES, local)
    if data is None:
        return None
    try:
        queue = read_queue(data)
        message = first_waiting(store, local, queue)
    except ValueError as error:
        return _unreadable(lane, local, str(error))
    if message is None:
        return None
    handler = handler_of(name_in(local)).decode("utf-8", "replace")
    letter, ident = _letter_before(store, local, queue)
    gate = view.lanes[lane].gates.get(handler)
    cause = cause_of(view.application, handler, local, queue, message, gate, letter)
    behind = queue.waits - 1
    return _answer(view, lane, local, queue, message, cause, behind=behind, letter=ident)


def _answer(
    view: WorkerView,
    lane: int,
    local: bytes,
    queue: WaitingQueue,
    message: WaitingMessage,
    cause: Cause,
    *,
    behind: int,
    letter: str = "",
) -> WaitingAnswer:
    now, headers = view.now(), dict(message.headers)
    return WaitingAnswer(
        key=text_of(message.key or b""),
        handler=handler_of(name_in(local)).decode("utf-8", "replace"),
        reason=cause.reason,
        why=cause.why,
        until=cause.until,
        due=rfc3339(cause.due) if cause.due else "",
        due_in=round(cause.due - now, 1) if cause.due else None,
        since=rfc3339(message.waits_since),
        waited=round(max(0.0, now - message.waits_since), 1),
        messages=behind + 1,
        behind=behind,
        attempts=0 if cause.reason in ("behind", "dead") else queue.attempts,
        id=text_of(headers.get(ID) or b""),
        type=_type_of(view.application, message, text_of(headers.get(TYPE) or b"")),
        topic=message.topic,
        partition=split_store_key(local)[0],
        lane=lane,
        letter=letter,
    )


def _type_of(app: Application, message: WaitingMessage, named: str) -> str:
    route = app.wiring.routes.get(message.topic)
    return route.message.__name__ if route is not None else named or message.topic


def _unreadable(lane: int, local: bytes, why: str) -> WaitingAnswer:
    name = name_in(local)
    return WaitingAnswer(
        key=text_of(split_row_key(name.partition(b"\0")[2])[0]),
        handler=handler_of(name).decode("utf-8", "replace"),
        reason="unreadable",
        why=f"{why}: row_unreadable in the log says which row",
        until="the row is replaced",
        due="",
        due_in=None,
        since="",
        waited=0.0,
        messages=1,
        behind=0,
        attempts=0,
        id="",
        type="",
        topic="",
        partition=split_store_key(local)[0],
        lane=lane,
    )


def _letter_before(store: Store, local: bytes, queue: WaitingQueue) -> tuple[Summary | None, str]:
    """The dead letter that holds a queue, and its id."""
    if queue.reason is not Reason.DEAD:
        return None, ""
    with suppress(ValueError):
        head = read_message(store.get(MESSAGES, local + queue.head.to_bytes(8, "big")) or b"")
        handler = handler_of(name_in(local)).decode("utf-8", "replace")
        for place in letter_places(head, handler, split_store_key(local)[0]):
            data = store.get(DEAD_LETTERS, place)
            if data is not None and (letter := decode_summary(data)).timestamp == head.timestamp:
                return letter, letter_id(place)
    return None, ""


def order_of(store: Store, local: bytes) -> bytes:
    """Since when the first message of a queue waits, as the index orders by it."""
    with suppress(ValueError):
        message = first_waiting(store, local, read_queue(store.get(QUEUES, local) or b""))
        if message is not None:
            return time_key(max(0, int(message.waits_since * 1000)))
    return time_key(0)
