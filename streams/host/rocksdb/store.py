"""A lane's tables in RocksDB: one database for each lane, with a column family for each table.

Memory is bounded: all lanes of the process share one block cache, and each lane has a small write buffer.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from rocksdict import Cache, DbClosedError, Options, Rdict, ReadOptions, WriteBatch

from streams.errors import StoreBusy
from streams.host.rocksdb.store_errors import store_error
from streams.host.rocksdb.store_options import table_options
from streams.ports import TP, TableSize, Write
from streams.system.shares import MOST
from streams.units import MIB

log = structlog.get_logger(__name__)

#: The file that marks a complete database, and its name while the rest of the database is removed.
_CURRENT, _FORMER = "CURRENT", "CURRENT.removed"
_META = "default"  # RocksDB's own column family: positions, and the time at which the store was current
_CURRENT_AT = b"current-at"
_POSITION = b"position:"
_SCAN_CHUNK = 512
#: Properties of a table: rows, bytes of its files, bytes that are still in memory.
_SIZES = ("rocksdb.estimate-num-keys", "rocksdb.live-sst-files-size", "rocksdb.size-all-mem-tables")
_IN_MEMORY = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
_OFFSET = struct.Struct(">q")
_TIME = struct.Struct(">d")


class RocksStores:
    """Opens the databases of this process's lanes, under `directory`/lane-<n>.

    `cache_bytes` limits blocks, indexes and filters of all lanes together. `write_buffer_bytes` is how much
    all tables of one lane hold in memory before a flush starts. A burst of writes may fill it twice for each
    table; then writes wait.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        cache_bytes: int = 64 * MIB,
        write_buffer_bytes: int = MOST.write_buffer,
    ) -> None:
        self._directory = Path(directory)
        self._cache = Cache(cache_bytes)
        self._options = partial(table_options, self._cache, write_buffer_bytes)

    def path(self, lane: int) -> Path:
        """The directory of a lane's database."""
        return self._directory / f"lane-{lane}"

    def kept(self) -> tuple[int, ...]:
        """The lanes with a store in this directory, left by an earlier owner or standby."""
        found = (path.name.removeprefix("lane-") for path in self._directory.glob("lane-*"))
        return tuple(sorted(int(number) for number in found if number.isdecimal()))

    def open(self, lane: int) -> RocksStore:
        """Open a lane's store, creating it if it is missing.

        Raises StoreBusy while another owner has it open, StoreUnavailable if the disk or the machine prevents
        it, and StoreBroken if it is damaged. Then `destroy` it and rebuild it from the changelogs.
        """
        return RocksStore(self.path(lane), self._options)

    def destroy(self, lane: int) -> None:
        """Remove a lane's files, including damaged ones. Raises StoreBusy while the store is open, and
        StoreUnavailable if files cannot be removed.
        """
        _destroy(self.path(lane))


class RocksStore:
    """One lane's open database. The write-ahead log is on, but not synced for each batch. If a power failure
    takes its last batches, it takes their positions too, so recovery reads them again from the changelogs.
    """

    def __init__(self, path: Path, options: Any) -> None:
        self._path = path
        self._options = options
        self._open()

    def _open(self) -> None:
        self._closed = False
        self._db: Any = None
        self._tables: dict[str, Any] = {}
        self._handles: dict[str, Any] = {}
        path = str(self._path)
        try:
            exists = (self._path / _CURRENT).exists()
            if not exists and (self._path / _FORMER).exists():
                _destroy(self._path)  # complete a removal that was interrupted
            self._path.mkdir(parents=True, exist_ok=True)
            names = Rdict.list_cf(path, self._options()) if exists else [_META]
            self._db = Rdict(path, self._options(), {name: self._options() for name in names})
            for name in names:
                if name != _META:
                    self._tables[name] = self._db.get_column_family(name)
                    self._handles[name] = self._db.get_column_family_handle(name)
            meta = dict(_chunk(self._db, b"", None, limit=None))
        except Exception as error:
            self.close()  # otherwise the next attempt would find it locked
            raise store_error(self._path, error) from error
        self._positions = {
            _tp_of(key): _OFFSET.unpack(meta[key])[0] for key in meta if key.startswith(_POSITION)
        }
        raw = meta.get(_CURRENT_AT)
        self._current_at: float | None = None if raw is None else _TIME.unpack(raw)[0]

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value, or None if the table or the key is missing."""
        family = self._tables.get(table)
        if family is None:
            self._check_open()
            return None
        try:
            value: bytes | None = family.get(key)
        except Exception as error:
            raise store_error(self._path, error) from error
        return value

    def _check_open(self) -> None:
        # A closed store has no tables left, and must not look like an empty one.
        if self._closed:
            raise DbClosedError(f"the store in {self._path} was closed")

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys, looked up in one call."""
        family = self._tables.get(table)
        if family is None or not keys:
            self._check_open()
            return [None] * len(keys)
        try:
            values: list[bytes | None] = family.get(keys if isinstance(keys, list) else list(keys))
        except Exception as error:
            raise store_error(self._path, error) from error
        return values

    def scan(
        self, table: str, *, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < stop, in order of keys.

        Reads in chunks, so that an unfinished iterator does not keep the database open. A row written
        meanwhile may or may not be included.
        """
        while (family := self._tables.get(table)) is not None:
            try:
                chunk = _chunk(family, start, stop)
            except Exception as error:
                raise store_error(self._path, error) from error
            yield from chunk
            if len(chunk) < _SCAN_CHUNK:
                return
            start = chunk[-1][0] + b"\0"
        self._check_open()

    def tables(self) -> list[str]:
        """Names of the tables that exist, sorted."""
        return sorted(self._tables)

    def table_size(self, table: str) -> TableSize:
        """RocksDB's own estimate. Rows that are not in files yet count with the memory that they use."""
        family = self._tables.get(table)
        if family is None:
            self._check_open()
            return TableSize(0, 0)
        try:
            rows, files, memory = (family.property_int_value(name) or 0 for name in _SIZES)
            # RocksDB allocates memory in blocks, the first one before there are any rows.
            if not any(family.property_int_value(name) for name in _IN_MEMORY):
                memory = 0
        except Exception as error:
            raise store_error(self._path, error) from error
        return TableSize(rows, files + memory)

    def apply(
        self, writes: Iterable[Write], positions: Mapping[TP, int], *, current_at: float | None = None
    ) -> None:
        """Write all changes, and the changelog positions that the store then has, in one atomic batch."""
        batch = WriteBatch(raw_mode=True)
        put, delete, handles = batch.put, batch.delete, self._handles
        last, handle = "", None
        try:
            for table, key, value in writes:
                if table is not last:  # most changes come grouped by table
                    last, handle = table, handles.get(table) or self._create(table)
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)
            for tp, offset in positions.items():
                put(_position_key(tp), _OFFSET.pack(offset))
            if current_at is not None:
                put(_CURRENT_AT, _TIME.pack(current_at))
            self._db.write(batch)
        except Exception as error:
            raise store_error(self._path, error) from error
        finally:
            del handle  # it keeps the database open as long as an error refers to this frame
        self._positions.update(positions)
        if current_at is not None:
            self._current_at = current_at

    def _create(self, table: str) -> Any:
        if table == _META:
            raise ValueError(f"a table cannot be named {_META!r}: RocksDB keeps that name")
        self._tables[table] = self._db.create_column_family(table, self._options())
        self._handles[table] = self._db.get_column_family_handle(table)
        return self._handles[table]

    def position(self, tp: TP) -> int:
        """The offset up to which the store has a changelog partition; 0 if it has nothing of it."""
        offset: int = self._positions.get(tp, 0)
        return offset

    def drop(self, table: str) -> None:
        """Remove a table and its rows, if it exists. Positions stay."""
        family = self._tables.pop(table, None)
        if family is None:
            self._check_open()
            return
        del self._handles[table]
        try:
            family.close()  # a dropped column family can no longer be closed
            self._db.drop_column_family(table)
        except Exception as error:
            raise store_error(self._path, error) from error

    def wipe(self) -> None:
        """Remove everything, including positions. The store stays open."""
        self._check_open()
        self.close()
        _destroy(self._path)
        self._open()

    def current_at(self) -> float | None:
        """The last time at which the store is known to have had all records of its changelogs, in epoch
        seconds; None if never.
        """
        return self._current_at

    def size(self) -> int:
        """The size of the store's files in bytes."""
        self._check_open()
        try:
            return sum(_bytes_of(path) for path in self._path.iterdir())
        except OSError as error:
            raise store_error(self._path, error) from error

    def close(self) -> None:
        """Release files and locks. Closing twice does nothing. Never raises: rows that could not be written,
        such as to a full disk, are also in the changelogs, and recovery reads them from there.
        """
        # RocksDB releases its lock with the last reference into the database, so drop all of them.
        if self._closed:
            return
        self._closed = True
        self._handles.clear()
        opened = [*self._tables.values(), *([] if self._db is None else [self._db])]
        self._tables.clear()
        for each in opened:
            try:
                each.close()  # writes rows from memory; closes even if that fails
            except Exception as error:  # noqa: BLE001 - rocksdict raises bare ones; logged
                log.warning("store_close_failed", path=str(self._path), error=str(error))


def _chunk(
    family: Any, start: bytes, stop: bytes | None, *, limit: int | None = _SCAN_CHUNK
) -> list[tuple[bytes, bytes]]:
    """Read the next pairs. Does not use rocksdict's `items`, which ends silently at a damaged block."""
    bounds = ReadOptions()
    if stop is not None:
        bounds.set_iterate_upper_bound(stop)
    pairs: list[tuple[bytes, bytes]] = []
    rows = family.iter(bounds)
    try:
        rows.seek(start)
        while rows.valid() and len(pairs) != limit:
            pairs.append((rows.key(), rows.value()))
            rows.next()
        rows.status()  # raises what made it invalid before the end
    finally:
        del rows  # it keeps the database open as long as an error refers to this frame
    return pairs


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a compaction removed it after it was listed
        return 0


def _tp_of(key: bytes) -> TP:
    topic, _, partition = key[len(_POSITION) :].decode().rpartition(":")
    return TP(topic, int(partition))


def _position_key(tp: TP) -> bytes:
    return b"%s%s:%d" % (_POSITION, tp.topic.encode(), tp.partition)


def _destroy(path: Path) -> None:
    """Remove a database. CURRENT is renamed first, so that a database which a failing disk lets us remove
    only in part cannot be opened. It could have positions beyond its rows.
    """
    current, former = path / _CURRENT, path / _FORMER
    try:
        if not path.exists():
            return
        if current.exists():
            current.rename(former)
    except OSError as error:
        raise store_error(path, error) from error
    try:
        # Takes RocksDB's lock, so it refuses a store in use before it removes any file.
        Rdict.destroy(str(path), Options(raw_mode=True))
    except Exception as error:
        refused = store_error(path, error)
        if isinstance(refused, StoreBusy):
            if former.exists() and not current.exists():
                former.rename(current)
            raise refused from error
    try:
        if path.exists():  # with files that RocksDB does not know or cannot read
            shutil.rmtree(path)
    except OSError as error:
        raise store_error(path, error) from error
