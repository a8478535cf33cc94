"""The indexes by status that workers keep: of sagas, of dead letters, and of messages that wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from streams.control.base.lane_rows import check_still_here, let_others
from streams.control.base.view import WorkerView, readable_store
from streams.control.sagas.row_index import Index, Indexed, IndexedStatus, catch_up
from streams.control.sagas.saga_rows import kinds_of_application, saga_index
from streams.engine.staging.changes import MESSAGES, QUEUES
from streams.engine.staging.keys import after_time, name_in, time_in, time_key
from streams.engine.waiting.dead_letters.row import LetterState, decode_summary
from streams.engine.waiting.queue import (
    Reason,
    WaitingMessage,
    WaitingQueue,
    handler_of,
    read_message,
    read_queue,
)
from streams.model.application import Application
from streams.model.layout import DEAD_LETTERS
from streams.ports import Store
from streams.saga.views import ChoreographedSaga

#: Of rows that have changed since they were indexed, so many are indexed while a request for a list waits.
MOST_CAUGHT_UP = 2_000
#: The group of dead letters. Their lists are in the order of their rows, as operations on all of them go.
LETTERS = "letters"
#: The group of queues of messages that wait, in the order of the time since when the first one does.
WAITING = "waiting"
#: The list of those that this program cannot read.
UNREADABLE = "unreadable"


def followed_tables(app: Application, choreographed: Sequence[ChoreographedSaga]) -> frozenset[str]:
    """The tables of which a lane is to mark changes."""
    sagas = {kind.table for kind in kinds_of_application(app, choreographed)}
    return frozenset({DEAD_LETTERS, QUEUES, *sagas})


def index_of(view: WorkerView) -> Index:
    """How each of those tables is indexed."""
    waiting = {QUEUES: Indexed(_queue_entry)}
    return {DEAD_LETTERS: Indexed(_letter_entry), **waiting, **saga_index(view)}


async def is_indexed(view: WorkerView, lane: int) -> bool:
    """Whether lists of a lane can come from its index, once it has caught up with a few changes. False while
    it has to with many, or where none is kept. Raises Problem 503 when the lane has gone meanwhile.
    """
    if not view.application.followed:
        return False
    store = readable_store(view, lane)

    async def pause() -> None:
        await let_others()
        check_still_here(view, lane, store)

    return await catch_up(store, index_of(view), pause, MOST_CAUGHT_UP)


def _letter_entry(_: Store, __: bytes, data: bytes) -> IndexedStatus:
    try:
        letter = decode_summary(data)
    except ValueError:  # of a later version: a request for it fails with that reason
        return IndexedStatus(LETTERS, UNREADABLE, b"", (LETTERS, UNREADABLE), time_key(0))
    state, value = str(letter.state), time_key(letter.failed_at_ms) + letter.handler.encode()
    return IndexedStatus(LETTERS, state, b"", (LETTERS, state), value)


def _queue_entry(store: Store, local: bytes, data: bytes) -> IndexedStatus | None:
    handler, reason, since_ms = handler_of(name_in(local)).decode("utf-8", "replace"), UNREADABLE, 0
    with suppress(ValueError):
        queue = read_queue(data)
        message = first_waiting(store, local, queue)
        if message is None:
            return None
        reason, since_ms = str(queue.reason), max(0, int(message.waits_since * 1000))
    return IndexedStatus(
        WAITING, waiting_list(handler, reason), time_key(since_ms), (WAITING, handler, reason)
    )


def waiting_list(handler: str, reason: str) -> str:
    """The list of the queues of a handler whose first message waits for a reason, the oldest first."""
    return f"{handler}:{reason}"


def first_waiting(store: Store, local: bytes, queue: WaitingQueue) -> WaitingMessage | None:
    """The first message of a queue that waits; None where only its dead letter is left, which does not.
    Raises ValueError for one that cannot be read.
    """
    number = queue.head
    if queue.reason is Reason.DEAD:
        if queue.length == 1:
            return None
        number += 1
    return read_message(store.get(MESSAGES, local + number.to_bytes(8, "big")) or b"")


def read_letter_value(value: bytes) -> tuple[str, float]:
    """The handler of a letter, and when it failed first, in epoch seconds: of an entry's value."""
    return after_time(value).decode(), time_in(value) / 1000


#: The lists that letters may be in.
LETTER_LISTS = (*map(str, LetterState), UNREADABLE)
