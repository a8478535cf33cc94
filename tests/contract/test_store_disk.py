"""What a lane's store does when the disk or the machine does not let it: the copy is kept."""

import errno
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streams.errors import StoreBroken, StoreBusy, StoreUnavailable
from streams.host.rocksdb import store as rocks
from streams.host.rocksdb.store import RocksStores
from streams.host.rocksdb.store_errors import store_error
from streams.ports import TP, Store, Stores
from streams.testing.store import FAILING, MemoryStores

CLOG = TP("app-orders-changelog", 0)
#: A full disk is reached after at most so many batches.
MOST = 2000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB of its own."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", directory], check=False)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here: that needs root")
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)


def remount(directory: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", directory], check=True)


def put(store: Store, batches: int = 1) -> None:
    """Write so many batches, each with the next position."""
    for _ in range(batches):
        n = store.position(CLOG) + 1
        rows = [("t", b"%d" % (n * 100 + i), random.Random(i).randbytes(1000)) for i in range(100)]
        store.apply(rows, {CLOG: n})


def fill(store: Store) -> None:
    put(store, MOST)
    raise AssertionError("the disk never became full")


def open_and_fill(stores: Stores) -> None:
    store = stores.open(0)
    try:
        fill(store)
    finally:
        store.close()


def kept(store: Store, reached: int) -> bool:
    last = [reached * 100 + i for i in range(100)]
    assert None not in store.get_many("t", [b"%d" % n for n in (*range(100, 200), *last)])
    return store.position(CLOG) == reached


@pytest.mark.promise("failing-disk", "the real RocksDB")
def test_a_full_disk_keeps_the_copy_until_there_is_room(disk: Path) -> None:
    stores = RocksStores(disk, cache_bytes=4 << 20)
    store = stores.open(0)
    store.apply([("t", b"first", b"1")], {})
    with pytest.raises(StoreUnavailable, match=r"^the disk is full: .*lane-0"):
        fill(store)
    reached = store.position(CLOG)
    with pytest.raises(StoreUnavailable):
        store.apply([("t", b"later", b"1")], {CLOG: reached + 1})
    assert store.get("t", b"first") == b"1"
    store.close()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"the disk is full|a write failed"):
            open_and_fill(stores)
    remount(disk, "size=64m")
    store = stores.open(0)
    assert store.position(CLOG) >= reached
    assert kept(store, store.position(CLOG))
    store.apply([("t", b"later", b"1")], {CLOG: store.position(CLOG) + 1})
    store.close()


@pytest.mark.promise("failing-disk", "the real RocksDB")
def test_a_store_on_a_full_disk_can_be_wiped(disk: Path) -> None:
    store = RocksStores(disk, cache_bytes=4 << 20).open(0)
    with pytest.raises(StoreUnavailable):
        fill(store)
    store.wipe()  # which makes room
    assert store.tables() == []
    store.close()


@pytest.mark.promise("failing-disk", "the real RocksDB")
def test_a_read_only_disk_keeps_the_copy(disk: Path) -> None:
    stores = RocksStores(disk, cache_bytes=4 << 20)
    store = stores.open(0)
    store.apply([("t", b"k", b"v")], {CLOG: 1})
    store.close()
    remount(disk, "ro")
    for lane in (0, 1):
        with pytest.raises(StoreUnavailable, match=r"^the file system is read-only: "):
            stores.open(lane)
    with pytest.raises(StoreUnavailable, match=r"^the file system is read-only: "):
        stores.destroy(0)
    remount(disk, "rw")
    again = stores.open(0)
    assert again.get("t", b"k") == b"v"
    again.close()


@contextmanager
def no_more_files(spare: int = 0) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as free:
        lowest = free.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.promise("failing-disk", "the real RocksDB")
@pytest.mark.parametrize("spare", [0, 1, 2, 4])
def test_too_many_open_files_keep_the_copy(tmp_path: Path, spare: int) -> None:
    stores = RocksStores(tmp_path, cache_bytes=4 << 20, write_buffer_bytes=64 << 10)
    store = stores.open(0)
    put(store)
    with (
        no_more_files(spare),
        pytest.raises(StoreUnavailable, match=r"^this process has too many open files"),
    ):
        put(store, 200)
    reached = store.position(CLOG)
    store.close()
    with no_more_files():
        for lane in (0, 1):
            with pytest.raises(StoreUnavailable, match="too many open files"):
                stores.open(lane)
    store = stores.open(0)
    assert kept(store, reached)
    store.close()


NO_SPACE = "IO error: No space left on device: While appending to file: /d/1.log"
MANY_FILES = "IO error: While open a file: /d/1.sst: Too many open files"
LOCKED = "IO error: While lock file: /d/LOCK: Resource temporarily unavailable"
HELD_HERE = "IO error: lock hold by current process: /d/LOCK: No locks available"


@pytest.mark.promise("failing-disk", "the real RocksDB")
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (NO_SPACE, StoreUnavailable, "full"),
        (MANY_FILES, StoreUnavailable, "many open"),
        ("IO error: While pread: /d/1.sst: Input/output error", StoreUnavailable, "disk fails"),
        ("IO error: While open: /d/LOCK: Read-only file system", StoreUnavailable, "read-only"),
        ("IO error: While open: /d/LOCK: Permission denied", StoreUnavailable, "may not use"),
        ("IO error: Writer has previous error.", StoreUnavailable, "a write failed before"),
        (OSError(errno.EROFS, "Read-only file system"), StoreUnavailable, "read-only"),
        (OSError("Read-only file system (os error 30)"), StoreUnavailable, "read-only"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StoreUnavailable, "quota"),
        (LOCKED, StoreBusy, "elsewhere"),
        (HELD_HERE, StoreBusy, "elsewhere"),
        ("IO error: While fsync: /d/1.sst: Device or resource busy", StoreUnavailable, "busy"),
        ("IO error: Stale file handle: /d/1.sst", StoreUnavailable, "exported anew"),
        ("IO error: While pread: /d/1.sst: Resource temporarily unavailable", StoreUnavailable, "not answer"),
        ("IO error: While fsync: /d/1.sst: Connection timed out", StoreUnavailable, "not answer"),
        ("IO error: While open: /d/1.sst: Remote I/O error", StoreUnavailable, "cannot be used"),
        (
            "Corruption: Can't access /1.sst: IO error: While stat: /1.sst: Input/output error",
            StoreUnavailable,
            "disk fails",
        ),
        ("Invalid argument: Direct I/O is not supported by the specified DB.", StoreUnavailable, "cannot be"),
        ("Shutdown in progress: ", StoreUnavailable, "cannot be used"),
        (OSError(errno.EBUSY, "Device or resource busy"), StoreUnavailable, "busy"),
        (OSError(errno.ENOTDIR, "Not a directory"), StoreUnavailable, "cannot be used"),
        ("Corruption: block checksum mismatch in /d/1.sst", StoreBroken, "wipe it"),
        (
            "Corruption: Can't access /1.sst: IO error: No such file or directory: /1.sst",
            StoreBroken,
            "wipe it",
        ),
        ("IO error: No such file or directory: While open: /d/1.sst", StoreBroken, "wipe it"),
        ("Corruption: Input/output error", StoreBroken, "wipe it"),
    ],
)
def test_each_error_is_of_the_files_or_of_the_machine(
    error: Exception | str, kind: type[Exception], said: str
) -> None:
    # What rocksdict raises is a bare Exception.
    found = store_error(Path("/d"), Exception(error) if isinstance(error, str) else error)
    assert type(found) is kind
    assert said in str(found)


@pytest.mark.promise("failing-disk", "the real RocksDB")
def test_a_mistake_of_the_caller_is_none_of_the_stores() -> None:
    with pytest.raises(TypeError):
        store_error(Path("/d"), TypeError("a str is no bytes"))


@pytest.mark.promise("failing-disk", "the real RocksDB")
def test_after_a_failed_write_a_store_is_opened_again() -> None:
    stores: Stores = MemoryStores()
    store = stores.open(0)
    store.apply([("t", b"k", b"v")], {CLOG: 1})
    stores.trouble = "the disk is full"  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match=r"^the disk is full"):
        store.apply([("t", b"k", b"2")], {CLOG: 2})
    stores.trouble = ""  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="a write failed before"):
        store.apply([("t", b"k", b"2")], {CLOG: 2})
    assert (store.get("t", b"k"), store.position(CLOG)) == (b"v", 1)
    store.close()
    again = stores.open(0)
    again.apply([("t", b"k", b"2")], {CLOG: 2})
    assert again.get("t", b"k") == b"2"
    again.close()


IO_ERROR = "IO error: While appending to file: /d/1.log: Input/output error"


def failing(*_: object) -> None:
    raise Exception(IO_ERROR)  # noqa: TRY002 - as rocksdict does


class FailingIterator:
    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.status = failing

    def seek(self, key: bytes) -> None:
        self.rows.seek(key)

    def valid(self) -> bool:
        return False


def fails_to_write(store: Any) -> None:
    store._db = SimpleNamespace(write=failing, close=store._db.close)
    store.apply([("t", b"k", b"2")], {CLOG: 2})


def fails_to_scan(store: Any) -> None:
    family = store._tables["t"]
    store._tables["t"] = SimpleNamespace(
        iter=lambda bounds: FailingIterator(family.iter(bounds)), close=family.close
    )
    list(store.scan("t"))


@pytest.mark.promise("failing-disk")
@pytest.mark.parametrize("call", [fails_to_write, fails_to_scan])
def test_an_error_that_is_kept_does_not_hold_the_store(tmp_path: Path, call: Any) -> None:
    stores = RocksStores(tmp_path, cache_bytes=4 << 20)
    store = stores.open(0)
    store.apply([("t", b"k", b"v")], {CLOG: 1})
    with pytest.raises(StoreUnavailable, match=r"^the disk fails") as kept:
        call(store)
    store.close()
    again = stores.open(0)
    assert (again.get("t", b"k"), kept.value.__cause__ is not None) == (b"v", True)
    again.close()


@pytest.mark.promise("failing-disk")
def test_a_removal_that_was_cut_short_leaves_no_half_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = RocksStores(tmp_path, cache_bytes=4 << 20)
    store = stores.open(0)
    put(store)
    store.close()

    def cut_short(path: str, _: object) -> None:
        for log in Path(path).glob("*.log"):
            log.unlink()
        failing()

    with monkeypatch.context() as patched:
        patched.setattr(rocks, "Rdict", SimpleNamespace(destroy=cut_short))
        patched.setattr(shutil, "rmtree", lambda _: failing())
        with pytest.raises(Exception, match="Input/output error"):
            stores.destroy(0)
    again = stores.open(0)
    assert (again.position(CLOG), again.tables()) == (0, [])
    again.close()


@pytest.mark.promise("failing-disk", "the real RocksDB")
def test_a_store_in_use_is_whole_after_its_removal(tmp_path: Path) -> None:
    stores = RocksStores(tmp_path, cache_bytes=4 << 20)
    store = stores.open(0)
    put(store)
    with pytest.raises(StoreBusy):
        stores.destroy(0)
    store.close()
    again = stores.open(0)
    assert kept(again, 1)
    again.close()


@pytest.mark.promise("failing-disk")
@pytest.mark.parametrize("call", sorted(FAILING))
def test_the_fake_goes_on_after_any_call_has_failed(call: str) -> None:
    stores = MemoryStores()
    store = stores.open(0)
    put(store)
    stores.trouble, stores.hits = "the disk fails", frozenset({call})
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: stores.open(1),
        "read": lambda: (store.get("t", b"100"), list(store.scan("t"))),
        "write": lambda: put(store),
        "wipe": store.wipe,
    }
    for name, do in calls.items():
        if name == call:
            with pytest.raises(StoreUnavailable, match=r"^the disk fails"):
                do()
    store.close()
    stores.trouble = ""
    again = stores.open(0)
    assert kept(again, 1)
    put(again)
    again.close()
