"""Holdings of a key at its owner: sagas, rows, dead letters, what waits for a retry, and timers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from streams.control.base.answers import RowAnswer
from streams.control.base.others import Others
from streams.control.base.paging import after
from streams.control.base.table_fields import shown_table
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.history.timeline_answers import KeyAnswer, TableRows, TimerAnswer
from streams.control.letters.letters import summary_answer
from streams.control.sagas.saga_answers import SagaAnswer
from streams.control.sagas.saga_rows import kinds, saga_of_key
from streams.control.waiting.queue_answers import rows_of_key
from streams.engine.staging.changes import TIMERS
from streams.engine.staging.keys import split_store_key, store_key, time_in
from streams.engine.waiting.dead_letters.row import decode_summary, letter_id
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import row_key
from streams.ports import Store

KEY_PATH = "/api/key"
#: Rows of a kind that are shown: of a table, of letters, of queues, of timers.
MOST_OF_A_KIND = 20


class _KeyPlace(NamedTuple):
    """Where a key is."""

    store: Store
    partition: int
    key: bytes

    def begins(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The first rows of the partition that begin so, and one more."""
        first = store_key(self.partition, prefix)
        return islice(self.store.scan(table, start=first, stop=after(first)), MOST_OF_A_KIND + 1)


async def held(view: WorkerView, key: str, others: Others[KeyAnswer]) -> KeyAnswer:
    """All of a key, from its owner. Raises Problem."""
    layout, data = view.application.layout, key_bytes(key)
    partition = layout.partition_of(data)
    lane = layout.lane_of(partition)
    if lane not in view.lanes:
        return await others.owner_of(view, lane, KEY_PATH, {"key": key})
    place = _KeyPlace(readable_store(view, lane), partition, data)
    return KeyAnswer(
        key=key,
        partition=partition,
        lane=lane,
        owner=view.url,
        sagas=_sagas(view, place),
        tables=list(_tables(view, place)),
        letters=[
            summary_answer(view.application, letter_id(local), decode_summary(value))
            for local, value in place.begins(DEAD_LETTERS, row_key(data))
        ],
        waiting=list(islice(rows_of_key(view, place.store, lane, data, behind=0), MOST_OF_A_KIND)),
        timers=list(_timers(view, place)),
    )


def key_bytes(key: str) -> bytes:
    """A key as records have it. Raises Problem 400."""
    try:
        data = key.encode()
    except UnicodeEncodeError as error:
        raise Problem(400, "bad_key", "the key is not UTF-8") from error
    if len(data) > 0xFFFF:
        raise Problem(400, "bad_key", f"the key has {len(data)} bytes: no key has more than {0xFFFF}")
    return data


def _sagas(view: WorkerView, place: _KeyPlace) -> list[SagaAnswer]:
    found: dict[str, SagaAnswer] = {}
    for kind in kinds(view):
        answer = saga_of_key(view, kind, place.store, place.partition, place.key)
        if answer is not None:
            found.setdefault(answer.id, answer)
    return list(found.values())


def _tables(view: WorkerView, place: _KeyPlace) -> Iterator[TableRows]:
    lane = view.application.layout.lane_of(place.partition)
    for name in view.application.tables:
        table = shown_table(view.application, name)
        rows = [
            RowAnswer(
                partition=place.partition, lane=lane, **table.read(split_store_key(local)[1], value)._asdict()
            )
            for local, value in place.begins(name, row_key(place.key))
        ]
        if rows:
            yield TableRows(table=name, rows=rows[:MOST_OF_A_KIND], more=len(rows) > MOST_OF_A_KIND)


def _timers(view: WorkerView, place: _KeyPlace) -> Iterator[TimerAnswer]:
    table = shown_table(view.application, TIMERS)
    for handler in view.application.handlers.values():
        prefix = handler.name_bytes + b"\0" + row_key(place.key)
        for local, value in place.begins(TIMERS, prefix):
            fields = table.read(split_store_key(local)[1], value)
            yield TimerAnswer(
                handler=handler.name,
                name=fields.subkey,
                topic=fields.value["topic"],
                due=fields.value["due"],
                due_in=round(time_in(value) / 1000 - view.now(), 1),
            )
