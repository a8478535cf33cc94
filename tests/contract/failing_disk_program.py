"""Lets each call of a RocksDB store meet an error of the disk, heals the disk, and says what is wrong then.

Run in a process whose disk fails (`chaos.rig.failing_disk`): `ERRNO HOW AFTER.. -- CALL..`. HOW is `once` or
`on`: one system call fails, or all from it on, after each of AFTER that succeed. Prints a line of JSON.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from chaos.rig.failing_disk import FOREVER, Call, FailingDisk
from streams.errors import StoreFailed, StoreUnavailable
from streams.host.rocksdb.store import RocksStore, RocksStores
from streams.ports import TP

CLOG = TP("app-orders-changelog", 0)
TABLES = ("a", "b", "c")
#: Rows of a table in each batch, and bytes of each.
ROWS, SIZE = 4, 700
#: Batches of the store that every call finds, of which the last are in the log alone.
MADE, FLUSHED = 40, 30
Do = Callable[[RocksStore], object]


def put(store: RocksStore, batches: int) -> None:
    for _ in range(batches):
        n = store.position(CLOG) + 1
        rows = [(t, key, random.Random(key).randbytes(SIZE)) for t in TABLES for key in keys(n)]
        store.apply(rows, {CLOG: n})


def keys(batch: int) -> list[bytes]:
    return [b"%d-%d" % (batch, row) for row in range(ROWS)]


def read(store: RocksStore) -> None:
    for table in TABLES:
        store.get_many(table, [key for n in range(1, 30) for key in keys(n)])
        store.get(table, keys(1)[0])


def compact(store: RocksStore) -> None:
    for family in store._tables.values():
        try:
            family.compact_range(None, None)
        except Exception as error:
            raise StoreUnavailable(str(error)) from error


CALLS: dict[str, Do] = {
    "open": lambda _: None,
    "get": read,
    "scan": lambda store: [list(store.scan(table)) for table in TABLES],
    "apply": lambda store: put(store, 3),
    "flush": lambda store: put(store, 40),
    "compaction": lambda store: (compact(store), put(store, 3)),
    "create": lambda store: store.apply([("new", b"k", b"v")], {}),
    "drop": lambda store: store.drop("c"),
    "size": lambda store: (store.size(), store.table_size("a")),
    "close": lambda store: store.close(),
    "wipe": lambda store: store.wipe(),
}
#: The store is not open when the disk begins to fail, or was just opened and has nothing in memory.
CLOSED, COLD = ("open",), ("get", "scan")


def stores_in(directory: Path) -> RocksStores:
    return RocksStores(directory, cache_bytes=64 << 10, write_buffer_bytes=128 << 10)


def wrong(stores: RocksStores, call: str, least: int) -> str:
    """What is wrong once the disk is healthy; empty when the store goes on where it was."""
    try:
        store = stores.open(0)
        at, tables = store.position(CLOG), store.tables()
        if call == "wipe" and not at and not tables:
            return ""
        if at < least:
            return f"it is at {at}, it was at {least}"
        for table in TABLES:
            if call == "drop" and table == "c":
                continue
            wanted = [key for n in range(1, at + 1) for key in keys(n)]
            if None in store.get_many(table, wanted) or len(list(store.scan(table))) != len(wanted):
                return f"rows of {table} are missing, or too many"
        put(store, 2)
        store.close()
    except StoreFailed as error:
        return f"{type(error).__name__}: {error.__cause__}"
    return ""


def met(disk: FailingDisk, made: Path, call: str, how: tuple[int, int, int]) -> tuple[int, str]:
    """How many system calls failed, and what is wrong."""
    error, times, after = how
    directory = made.with_name(f"{call}-{times}-{after}")
    shutil.copytree(made, directory)
    stores, least = stores_in(directory), MADE
    store: RocksStore | None = None
    if call not in CLOSED:
        store = stores.open(0)
        if call not in COLD:
            put(store, 5)
        least = store.position(CLOG)
    raised: StoreFailed | None = None
    disk.fail(error, ~Call.READ if error == errno.EROFS else ~Call(0), after=after, times=times)
    try:
        if call in CLOSED:
            store = stores.open(0)
        else:
            CALLS[call](store)
    except StoreFailed as failed:
        raised = failed  # kept, as a lane keeps it, with all that it holds
    if store is not None:
        store.close()
    disk.heal()
    problem = wrong(stores, call, least)
    if raised is not None and not isinstance(raised, StoreUnavailable):
        problem = f"{type(raised).__name__} while the disk failed: {raised.__cause__}"
    shutil.rmtree(directory, ignore_errors=True)
    return disk.refused, problem


def main(error: str, times: int, afters: Sequence[int], calls: Iterable[str]) -> None:
    root = Path(os.environ["FAILING_DISK_UNDER"])
    disk = FailingDisk(Path(os.environ["FAILING_DISK"]), root)
    made = root / "made"
    if (child := os.fork()) == 0:
        store = stores_in(made).open(0)
        put(store, FLUSHED)
        store._db.flush()
        for family in store._tables.values():
            family.flush()
        put(store, MADE - FLUSHED)
        os._exit(0)  # as a kill leaves it, with rows in the log alone
    os.waitpid(child, 0)
    found = {}
    for call in calls:
        refused, problems = 0, []
        for after in afters:
            failed, problem = met(disk, made, call, (getattr(errno, error), times, after))
            refused += failed
            if problem:
                problems.append(f"after {after} calls: {problem}")
            if not failed:
                break
        found[call] = (refused, problems)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    options, _, chosen = " ".join(sys.argv[1:]).partition(" -- ")
    named, how, *after = options.split()
    main(named, 1 if how == "once" else FOREVER, [int(each) for each in after], chosen.split() or CALLS)
