"""Lane stores in memory, which survive a crash as files would."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from streams.errors import StoreBroken, StoreBusy, StoreUnavailable
from streams.ports import TP, TableSize, Write

#: How many of the last batches `MemoryStores.crash` can take back.
HISTORY = 64

#: Calls that a full disk is in the way of, and those of one that fails.
FULL = frozenset({"open", "write", "wipe"})
FAILING = FULL | {"read"}

Undo = Callable[[], None]


@dataclass(slots=True)
class _Files:
    """Files of a lane, in memory."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    positions: dict[TP, int] = field(default_factory=dict)
    current_at: float | None = None
    broken: bool = False
    history: deque[Undo] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def undo(self, table: str, key: bytes) -> Undo:
        """The write that brings a row back to its value of now."""
        rows = self.tables[table]
        before = rows.get(key)

        def back() -> None:
            if before is None:
                rows.pop(key, None)
            else:
                rows[key] = before

        return back


class MemoryStores:
    """The lanes' stores of one machine.

    Attributes:
        trouble: what is wrong with the disk, such as that it is full; empty: nothing.
        hits: the calls that it is in the way of: a full disk lets rows be read, a failing one does not.
        refused: how often it was in the way.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self.hits = FULL
        self.refused = 0
        self._files: dict[int, _Files] = {}
        self._open: dict[int, MemoryStore] = {}

    def open(self, lane: int) -> MemoryStore:
        """Open a lane's store, creating it when missing. Raises StoreBusy, StoreUnavailable or
        StoreBroken, as the real one.
        """
        if lane in self._open:
            raise StoreBusy(f"the store of lane {lane} is open elsewhere: close its previous owner first")
        self._check_disk("open")
        files = self._files.setdefault(lane, _Files())
        if files.broken:
            raise StoreBroken(
                f"the store of lane {lane} cannot be used: wipe it and rebuild it from the changelogs"
            )
        store = MemoryStore(files, lambda: self._open.pop(lane, None), self._check_disk)
        self._open[lane] = store
        return store

    def _check_disk(self, call: str) -> None:
        if self.trouble and call in self.hits:
            self.refused += 1
            raise StoreUnavailable(f"{self.trouble}: injected")

    def crash(self, lane: int, *, lose_batches: int = 0) -> None:
        """End the lane's owner without a close. A power failure also loses the last `lose_batches`, whole
        ones, at most HISTORY.
        """
        store = self._open.pop(lane, None)
        if store is not None:
            store.closed = True
        history = self._files.setdefault(lane, _Files()).history
        for _ in range(min(lose_batches, len(history))):
            history.pop()()

    def kept(self) -> tuple[int, ...]:
        """The lanes of which there is a store here."""
        return tuple(sorted(self._files))

    def copied(self) -> MemoryStores:
        """The same files on another disk: a backup, or a machine that was cloned. Nobody has them open."""
        copy = MemoryStores()
        copy._files = {
            lane: _Files(
                {table: dict(rows) for table, rows in files.tables.items()},
                dict(files.positions),
                files.current_at,
                files.broken,
            )
            for lane, files in self._files.items()
        }
        return copy

    def damage(self, lane: int) -> None:
        """Make the files unreadable, from the next open on."""
        self._files.setdefault(lane, _Files()).broken = True

    def destroy(self, lane: int) -> None:
        """Remove a lane's files, broken ones too; also what a lost disk does. Raises StoreBusy."""
        if lane in self._open:
            raise StoreBusy(f"the store of lane {lane} is open: close it first")
        self._check_disk("wipe")
        self._files.pop(lane, None)


class MemoryStore:
    """One lane's open store."""

    def __init__(
        self, files: _Files, on_close: Callable[[], object], check_disk: Callable[[str], None]
    ) -> None:
        self._files = files
        self._on_close = on_close
        self._check_disk = check_disk
        self._failed = False
        self.closed = False

    def _live(self) -> _Files:
        if self.closed:
            raise RuntimeError("the store was closed")
        return self._files

    def _readable(self) -> _Files:
        files = self._live()
        self._check_disk("read")
        return files

    def _writable(self) -> _Files:
        """Once a write has failed, none succeeds until the store is opened again, as with RocksDB."""
        files = self._live()
        if self._failed:
            raise StoreUnavailable("a write failed before: injected")
        try:
            self._check_disk("write")
        except StoreUnavailable:
            self._failed = True
            raise
        return files

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value, or None."""
        return self._readable().tables.get(table, {}).get(key)

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys."""
        rows = self._readable().tables.get(table, {})
        return [rows.get(key) for key in keys]

    def scan(
        self, table: str, *, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop, in order of key; rows as they were at the first one."""
        rows = self._readable().tables.get(table)
        if not rows:
            return
        found = sorted((k, v) for k, v in rows.items() if k >= start and (stop is None or k < stop))
        yield from found

    def tables(self) -> list[str]:
        """Names of the tables that exist, sorted."""
        return sorted(self._live().tables)

    def table_size(self, table: str) -> TableSize:
        """Its rows, and bytes of keys and values."""
        rows = self._live().tables.get(table, {})
        return TableSize(len(rows), sum(len(key) + len(value) for key, value in rows.items()))

    def apply(
        self, writes: Iterable[Write], positions: Mapping[TP, int], *, current_at: float | None = None
    ) -> None:
        """All changes and the changelog positions that they bring the store to, or none of them. After them
        it has all that the changelogs had at `current_at`, in epoch seconds.
        """
        files = self._writable()
        changes = list(writes)
        before_positions, before_time = dict(files.positions), files.current_at
        undo: list[Undo] = []
        for table, key, value in changes:
            rows = files.tables.setdefault(table, {})
            undo.append(files.undo(table, key))
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        files.positions.update(positions)
        if current_at is not None:
            files.current_at = current_at

        def back() -> None:
            for step in reversed(undo):
                step()
            files.positions, files.current_at = before_positions, before_time

        files.history.append(back)

    def position(self, tp: TP) -> int:
        """The changelog offset that the store has been brought to; 0 when it has none."""
        return self._live().positions.get(tp, 0)

    def drop(self, table: str) -> None:
        """Remove a table with all in it; nothing happens when there is none. Positions stay."""
        files = self._writable()
        if files.tables.pop(table, None) is not None:
            files.history.clear()  # a dropped table does not come back by losing a batch

    def wipe(self) -> None:
        """Remove everything, positions too. The store stays open."""
        files = self._live()
        self._check_disk("wipe")
        self._failed = False
        files.tables.clear()
        files.positions.clear()
        files.history.clear()
        files.current_at = None

    def current_at(self) -> float | None:
        """When the store is known to have had all that its changelogs had, in seconds since the epoch."""
        return self._live().current_at

    def size(self) -> int:
        """Bytes of keys and values."""
        tables = self._live().tables.values()
        return sum(len(key) + len(value) for rows in tables for key, value in rows.items())

    def close(self) -> None:
        """Let the next owner open it. Closing twice does nothing."""
        if not self.closed:
            self.closed = True
            self._on_close()
