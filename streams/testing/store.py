"""Lane stores in memory. Their contents survive a simulated crash, as files would."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from streams.errors import StoreBroken, StoreBusy, StoreUnavailable
from streams.ports import TP, TableSize, Write

#: Number of last batches that `MemoryStores.crash` can undo.
HISTORY = 64

#: Calls that fail on a full disk, and calls that fail on a broken one.
FULL = frozenset({"open", "write", "wipe"})
FAILING = FULL | {"read"}

Undo = Callable[[], None]


@dataclass(slots=True)
class _Files:
    """The contents of a lane's store, which outlive its owner."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    positions: dict[TP, int] = field(default_factory=dict)
    current_at: float | None = None
    broken: bool = False
    history: deque[Undo] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def undo(self, table: str, key: bytes) -> Undo:
        """A function that restores a row to its present value."""
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
        trouble: text of the disk's error, such as "No space left on device"; empty if there is none.
        hits: the calls that fail because of it: a full disk can still be read, a broken one cannot.
        refused: number of calls that have failed because of it.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self.hits = FULL
        self.refused = 0
        self._files: dict[int, _Files] = {}
        self._open: dict[int, MemoryStore] = {}

    def open(self, lane: int) -> MemoryStore:
        """Open a lane's store, and create it if it is missing. Like the real one, raises StoreBusy,
        StoreUnavailable or StoreBroken.
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
        """End the lane's owner without closing the store. To simulate a power failure, the last
        `lose_batches` write batches are lost, at most HISTORY.
        """
        store = self._open.pop(lane, None)
        if store is not None:
            store.closed = True
        history = self._files.setdefault(lane, _Files()).history
        for _ in range(min(lose_batches, len(history))):
            history.pop()()

    def kept(self) -> tuple[int, ...]:
        """The lanes that have a store here."""
        return tuple(sorted(self._files))

    def copied(self) -> MemoryStores:
        """A copy of all stores, all of them closed, as on a backup or a cloned machine."""
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
        """Make a lane's store unreadable from the next `open` on."""
        self._files.setdefault(lane, _Files()).broken = True

    def destroy(self, lane: int) -> None:
        """Remove a lane's store, even a broken one, as when a disk is lost. Raises StoreBusy."""
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
        """After a failed write, all writes fail until the store is opened again, as in RocksDB."""
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
        """The values in the order of the keys; None for missing ones."""
        rows = self._readable().tables.get(table, {})
        return [rows.get(key) for key in keys]

    def scan(
        self, table: str, *, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `start` <= key < `stop`, sorted by key, as they were when the scan began."""
        rows = self._readable().tables.get(table)
        if not rows:
            return
        found = sorted((k, v) for k, v in rows.items() if k >= start and (stop is None or k < stop))
        yield from found

    def tables(self) -> list[str]:
        """Names of the tables that exist, sorted."""
        return sorted(self._live().tables)

    def table_size(self, table: str) -> TableSize:
        """Number of rows of a table, and bytes of their keys and values."""
        rows = self._live().tables.get(table, {})
        return TableSize(len(rows), sum(len(key) + len(value) for key, value in rows.items()))

    def apply(
        self, writes: Iterable[Write], positions: Mapping[TP, int], *, current_at: float | None = None
    ) -> None:
        """Apply all changes and changelog positions, or none. With `current_at` (epoch seconds), the store
        then has everything that the changelogs had at that time.
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
        """The changelog offset up to which the store is current; 0 if none was written."""
        return self._live().positions.get(tp, 0)

    def drop(self, table: str) -> None:
        """Remove a table and its rows, if it exists. Positions stay."""
        files = self._writable()
        if files.tables.pop(table, None) is not None:
            files.history.clear()  # a lost batch must not bring a dropped table back

    def wipe(self) -> None:
        """Remove everything, including positions. The store stays open."""
        files = self._live()
        self._check_disk("wipe")
        self._failed = False
        files.tables.clear()
        files.positions.clear()
        files.history.clear()
        files.current_at = None

    def current_at(self) -> float | None:
        """Last time (epoch seconds) whose changelog contents the store is known to have; None if unknown."""
        return self._live().current_at

    def size(self) -> int:
        """Bytes of keys and values."""
        tables = self._live().tables.values()
        return sum(len(key) + len(value) for rows in tables for key, value in rows.items())

    def close(self) -> None:
        """Close the store, so that the next owner can open it. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self._on_close()
