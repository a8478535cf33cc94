"""An index of rows by status, made beside a lane's work, so that no list and no count looks at every row.

A lane only marks that a row has changed. Readers catch up first: each marked row is read, and
its entry moved to where it belongs. Marks and entries lie in the lane's store and go with it (docs/adr/0039).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from streams.control.base.paging import after
from streams.engine.staging.changes import BY_STATUS, CHANGED, STATUS_OF, mark_of, unfollow
from streams.ports import Store, Write

#: Rows looked at between two turns of the event loop, which lanes share.
AT_ONCE = 50
#: After so many marks were removed, and none is left, their table is made anew: scans of RocksDB pass over
#: each that was removed, until it has tidied up.
MOST_REMOVED = 50_000
#: Of a store's index: for which tables, and in which form, it was made.
_NOTE, _COUNTS, _REMOVED = b"\0note", b"\0counts", b"\0removed"
_VERSION = 1
_encode_counts = msgspec.msgpack.Encoder().encode
_decode_counts = msgspec.msgpack.Decoder(dict[str, int]).decode
_decode_known = msgspec.msgpack.Decoder(tuple[bytes, str]).decode


class IndexedStatus(NamedTuple):
    """A row's entry in the index.

    Attributes:
        group: of what the lists are: sagas, letters.
        status: the list that it is in.
        order: its place there, bytes that sort; every entry of a group has as many.
        labels: what it is counted under.
        value: what a count wants to know of it without its row.
    """

    group: str
    status: str
    order: bytes
    labels: tuple[str, ...]
    value: bytes = b""


class Indexed(NamedTuple):
    """How the rows of a table are indexed.

    Attributes:
        entry: of (store, local key, value); None: the row is in no list.
        others: tables of which the row with the same local key depends on this one.
    """

    entry: Callable[[Store, bytes, bytes], IndexedStatus | None]
    others: tuple[str, ...] = ()


class ListedRow(NamedTuple):
    """An entry of a list. `place` is its position: the next page begins after it."""

    place: bytes
    status: str
    order: bytes
    table: str
    local: bytes
    value: bytes


Index = Mapping[str, Indexed]
Pause = Callable[[], Awaitable[None]]


# -- to keep it -------------------------------------------------------------------------------------------


def is_begun(store: Store, index: Index) -> bool:
    """Whether there is an index, though it may not have caught up yet."""
    return store.get(STATUS_OF, _NOTE) == _note(index)


async def catch_up(store: Store, index: Index, pause: Pause, most: float = float("inf")) -> bool:
    """Index what has changed, `most` rows about. False: not all yet, so the index may lack rows. Others have
    their turn in each `pause`, which raises when the store has gone meanwhile.
    """
    if not is_begun(store, index):
        if most != float("inf"):  # it takes too long for one who waits
            return False
        await _begin(store, index, pause)
    looked, changed = 0, store.scan(CHANGED)
    while looked < most:
        marks = [mark for mark, _ in islice(changed, AT_ONCE)]
        if not marks:
            _make_anew(store)
            return True
        store.apply(_moves(store, index, marks), {})
        looked += len(marks)
        await pause()
    return next(changed, None) is None


def _make_anew(store: Store) -> None:
    """Make the table of marks anew, if it has none, and many were removed. No mark can come in between."""
    if int(store.get(STATUS_OF, _REMOVED) or 0) >= MOST_REMOVED:
        store.drop(CHANGED)
        store.apply([(STATUS_OF, _REMOVED, None)], {})


async def _begin(store: Store, index: Index, pause: Pause) -> None:
    """Mark every row: the index is new, or was made for other tables."""
    unfollow(store)
    for table in index:
        rows = store.scan(table)
        while some := [(CHANGED, mark_of(table, local), b"") for local, _ in islice(rows, AT_ONCE)]:
            store.apply(some, {})
            await pause()
    store.apply([(STATUS_OF, _NOTE, _note(index))], {})


def _note(index: Index) -> bytes:
    return b"%d %b" % (_VERSION, " ".join(sorted(index)).encode())


def _moves(store: Store, index: Index, marks: list[bytes]) -> list[Write]:
    """Writes that move the entries of marked rows to where they belong, and remove the marks."""
    writes: list[Write] = [(CHANGED, mark, None) for mark in marks]
    numbers = Counter(_counts(store))
    rows = dict.fromkeys(each for mark in marks for each in _rows_of(index, mark))
    for table, local in rows:
        mark, data = mark_of(table, local), store.get(table, local)
        entry = None if data is None else index[table].entry(store, local, data)
        known = store.get(STATUS_OF, mark)
        before, labels = (b"", "") if known is None else _decode_known(known)
        place, label = (b"", "") if entry is None else (_place(entry, mark), "\0".join(entry.labels))
        if (before, labels) == (place, label):
            continue
        if before:
            writes.append((BY_STATUS, before, None))
            numbers[labels] -= 1
        if entry is None:
            writes.append((STATUS_OF, mark, None))
        else:
            writes += [
                (BY_STATUS, place, entry.value),
                (STATUS_OF, mark, msgspec.msgpack.encode((place, label))),
            ]
            numbers[label] += 1
    counts = {label: number for label, number in numbers.items() if number}
    removed = int(store.get(STATUS_OF, _REMOVED) or 0) + len(marks)
    return [
        *writes,
        (STATUS_OF, _COUNTS, _encode_counts(counts)),
        (STATUS_OF, _REMOVED, b"%d" % removed),
    ]


def _rows_of(index: Index, mark: bytes) -> Iterator[tuple[str, bytes]]:
    name, _, local = mark.partition(b"\0")
    table = name.decode()
    if table in index:  # else the note of tables is about to differ
        for each in (table, *index[table].others):
            yield each, local


def _place(entry: IndexedStatus, mark: bytes) -> bytes:
    return _list_of(entry.group, entry.status) + entry.order + mark


def place_of_row(group: str, status: str, table: str, local: bytes, order: bytes = b"") -> bytes:
    """The place of a row in a list, by its order there; some lists have none but that of their rows."""
    return _list_of(group, status) + order + mark_of(table, local)


def _list_of(group: str, status: str) -> bytes:
    return b"%b\0%b\0" % (group.encode(), status.encode())


# -- to ask it --------------------------------------------------------------------------------------------


def counted(store: Store, group: str) -> Counter[tuple[str, ...]]:
    """How many entries of a group there are by their labels, as far as the index has caught up."""
    split = {tuple(labels.split("\0")): number for labels, number in _counts(store).items()}
    return Counter({labels[1:]: number for labels, number in split.items() if labels[0] == group})


def _counts(store: Store) -> dict[str, int]:
    data = store.get(STATUS_OF, _COUNTS)
    return {} if data is None else _decode_counts(data)


def entries(
    store: Store, group: str, status: str, *, width: int, begin: bytes = b"", until: bytes | None = None
) -> Iterator[ListedRow]:
    """A list from a place on, in order, up to the order `until`. `width` is the bytes of an order.

    Rows may have changed since they were indexed: read a row before showing it.
    """
    first = _list_of(group, status)
    stop = after(first) if until is None else after(first + until)
    for place, value in store.scan(BY_STATUS, start=max(first, begin), stop=stop):
        order = place[len(first) : len(first) + width]
        name, _, local = place[len(first) + width :].partition(b"\0")
        yield ListedRow(place, status, order, name.decode(), local, value)
