"""What a lane relies on in its local store, held by the one in memory and by RocksDB alike."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from streams.errors import StoreBroken, StoreBusy
from streams.host.rocksdb.store import RocksStores
from streams.ports import TP, Store, Stores, Write
from streams.testing.store import MemoryStores

LANE = 3
CLOG = TP("app-orders-changelog", LANE)
INBOX = TP("app-inbox-changelog", LANE)
OTHER = TP("app-orders-changelog", LANE + 4)

Kept = MemoryStores | RocksStores


@pytest.fixture(params=["memory", "rocksdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def stores(kind: str, tmp_path: Path) -> Kept:
    return MemoryStores() if kind == "memory" else RocksStores(tmp_path, cache_bytes=8 << 20)


@pytest.fixture
def store(stores: Stores) -> Iterator[Store]:
    opened = stores.open(LANE)
    yield opened
    opened.close()


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.tables() == []
    assert store.get("orders", b"1") is None
    assert store.get_many("orders", [b"1", b"2"]) == [None, None]
    assert list(store.scan("orders")) == []
    assert store.position(CLOG) == 0
    assert store.current_at() is None


def test_disk_knows_of_which_lanes_it_has_stores(stores: MemoryStores | RocksStores, tmp_path: Path) -> None:
    assert stores.kept() == ()
    for lane in (10, 2):
        stores.open(lane).close()
    (tmp_path / "lane-old").mkdir()
    assert stores.kept() == (2, 10)
    stores.destroy(10)
    assert stores.kept() == (2,)


def test_its_size_grows_with_what_is_written(store: Store) -> None:
    before = store.size()
    store.apply([("orders", b"%d" % n, random.Random(n).randbytes(100)) for n in range(100)], {})
    assert store.size() >= before + 10_000


def test_a_table_tells_about_how_many_rows_it_has(store: Store) -> None:
    assert store.table_size("orders") == (0, 0)
    store.apply([("orders", b"%d" % n, random.Random(n).randbytes(100)) for n in range(1000)], {})
    store.apply([("stock", b"1", b"")], {})
    size = store.table_size("orders")
    assert 900 <= size.rows <= 1100
    assert size.bytes >= 100_000
    assert store.table_size("stock").rows == 1
    store.drop("stock")
    assert store.table_size("stock") == (0, 0)


KEYS = (b"", b"\0", b"a", b"a\0", b"a\xff", b"b", b"\xff", b"\xff\xff", *(b"%06d" % n for n in range(400)))
TABLES = ("orders", "stock", "inbox")


class Model:
    """What a store must have: rows of a table, positions, and since when it is current."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, bytes]] = {}
        self.positions: dict[TP, int] = {}
        self.current_at: float | None = None

    def apply(self, writes: list[Write], positions: dict[TP, int], current_at: float | None) -> None:
        for table, key, value in writes:
            held = self.rows.setdefault(table, {})
            held.pop(key, None)
            if value is not None:
                held[key] = value
        self.positions |= positions
        self.current_at = self.current_at if current_at is None else current_at

    def check(self, store: Store, chance: random.Random) -> None:
        low, high = sorted(chance.choices(KEYS, k=2))
        for table in (*TABLES, "none"):
            held = sorted(self.rows.get(table, {}).items())
            assert list(store.scan(table)) == held
            assert [key for key, _ in store.scan(table, start=low)] == [key for key, _ in held if key >= low]
            assert list(store.scan(table, start=low, stop=high)) == [e for e in held if low <= e[0] < high]
            wanted = chance.choices(KEYS, k=9)
            assert store.get_many(table, wanted) == [dict(held).get(key) for key in wanted]
            assert store.get(table, wanted[0]) == dict(held).get(wanted[0])
        assert list(store.scan("orders", start=high, stop=low)) == []
        assert set(store.tables()) >= {table for table, rows in self.rows.items() if rows}
        for tp in (CLOG, INBOX, OTHER):
            assert store.position(tp) == self.positions.get(tp, 0)
        assert store.current_at() == self.current_at


@pytest.mark.promise("deleted-rows")
@pytest.mark.parametrize("seed", range(4))
def test_a_store_has_what_was_written_through_drops_and_reopenings(stores: Stores, seed: int) -> None:
    chance, model, store, beside = random.Random(seed), Model(), stores.open(LANE), stores.open(LANE + 1)
    for step in range(60):
        match chance.choice(("apply", "apply", "apply", "drop", "reopen", "wipe")):
            case "apply":
                writes = [
                    (chance.choice(TABLES), chance.choice(KEYS), chance.choice((None, b"", b"%d" % n)))
                    for n in range(chance.choice((0, 1, 5, 500)))
                ]
                positions = {chance.choice((CLOG, INBOX)): chance.randrange(1 << 40)} if step % 3 else {}
                current_at = chance.choice((None, float(step)))
                store.apply(writes, positions, current_at=current_at)
                model.apply(writes, positions, current_at)
            case "drop":
                store.drop(table := chance.choice((*TABLES, "never there")))
                model.rows.pop(table, None)
            case "reopen":
                store.close()
                store = stores.open(LANE)
            case "wipe":
                store.wipe()
                model = Model()
        model.check(store, chance)
    assert beside.tables() == [], "lanes keep apart"
    store.close()
    beside.close()


def test_a_store_is_open_once_at_a_time(stores: Stores) -> None:
    first = stores.open(LANE)
    first.apply([("t", b"k", b"v")], {})
    unfinished = first.scan("t")
    next(unfinished)
    with pytest.raises(StoreBusy, match=str(LANE)):
        stores.open(LANE)
    with pytest.raises(StoreBusy):
        stores.destroy(LANE)  # type: ignore[attr-defined]
    assert first.get("t", b"k") == b"v"
    first.close()
    first.close()
    second = stores.open(LANE)
    assert second.get("t", b"k") == b"v"
    second.close()


def test_a_closed_store_does_not_seem_empty(stores: Stores) -> None:
    store = stores.open(LANE)
    store.apply([("t", b"k", b"v")], {CLOG: 1})
    store.close()
    for use in (
        lambda: store.get("t", b"k"),
        lambda: store.get_many("t", [b"k"]),
        lambda: list(store.scan("t")),
        lambda: store.apply([("t", b"k", b"zombie")], {}),
        lambda: store.apply([], {CLOG: 2}),
        lambda: store.drop("u"),
        lambda: store.wipe(),
    ):
        with pytest.raises(Exception, match="closed"):
            use()
    again = stores.open(LANE)
    assert (again.get("t", b"k"), again.position(CLOG)) == (b"v", 1)
    again.close()


@pytest.mark.parametrize("kind", ["memory", "rocksdb"], indirect=True)
def test_a_broken_store_says_so_and_can_be_destroyed(kind: str, stores: Stores, tmp_path: Path) -> None:
    store = stores.open(LANE)
    store.apply([("t", b"k", b"v")], {CLOG: 1})
    store.close()
    if isinstance(stores, MemoryStores):
        stores.damage(LANE)
    else:
        (tmp_path / f"lane-{LANE}" / "CURRENT").write_text("not a manifest")
    with pytest.raises(StoreBroken, match=rf"{LANE}.*rebuild"):
        stores.open(LANE)
    stores.destroy(LANE)  # type: ignore[attr-defined]
    again = stores.open(LANE)
    assert again.tables() == []
    again.close()


# RocksDB alone

APPLIES = """
import sys
from streams.ports import TP
from streams.host.rocksdb.store import RocksStores
store = RocksStores(sys.argv[1], cache_bytes=4 << 20, write_buffer_bytes=64 << 10).open(0)
i = store.position(TP("clog", 0))
while True:
    i += 1
    value = b"%d" % i
    store.apply([(t, b"%d" % k, value) for t in ("a", "b", "c") for k in range(50)], {TP("clog", 0): i})
    if i % 100 == 0:
        print(i, flush=True)
"""


@pytest.mark.promise("local-store")
def test_a_killed_process_leaves_whole_batches_only(tmp_path: Path) -> None:
    kill_after = random.Random(7)
    reached = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", APPLIES, str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(kill_after.randint(1, 6)):
                printed = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        store = RocksStores(tmp_path).open(0)
        position = store.position(TP("clog", 0))
        rows = {table: {value for _, value in store.scan(table)} for table in ("a", "b", "c")}
        store.close()
        assert position >= printed > reached
        assert rows == {table: {b"%d" % position} for table in ("a", "b", "c")}
        reached = printed


def test_a_store_open_in_another_process_is_busy(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", APPLIES, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreBusy, match="lane-0"):
            RocksStores(tmp_path).open(0)
        process.kill()


@pytest.mark.promise("local-store")
def test_a_damaged_file_found_while_reading_is_a_broken_store(tmp_path: Path) -> None:
    store = RocksStores(tmp_path).open(0)
    store.apply([("t", b"%06d" % i, random.Random(i).randbytes(200)) for i in range(5000)], {})
    store._tables["t"].flush()
    store.close()
    biggest = max((tmp_path / "lane-0").glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(biggest.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20_000] = bytes(20_000)
    biggest.write_bytes(content)
    store = RocksStores(tmp_path).open(0)
    keys = [b"%06d" % i for i in range(2000, 3000)]
    with pytest.raises(StoreBroken, match="lane-0"):
        list(store.scan("t"))
    with pytest.raises(StoreBroken, match="lane-0"):
        store.get_many("t", keys)
    with pytest.raises(StoreBroken, match="lane-0"):
        [store.get("t", key) for key in keys]
    store.wipe()
    assert store.get("t", b"000001") is None
    store.close()


def test_the_name_that_rocksdb_keeps_is_refused(tmp_path: Path) -> None:
    store = RocksStores(tmp_path).open(0)
    with pytest.raises(ValueError, match="default"):
        store.apply([("default", b"k", b"v")], {})
    store.close()


def test_memory_does_not_grow_with_tables_or_data(tmp_path: Path) -> None:
    cache, buffer, tables = 4 << 20, 1 << 20, 8
    stores = RocksStores(tmp_path, cache_bytes=cache, write_buffer_bytes=buffer)
    store = stores.open(0)
    peak = written = 0
    while written < 64 * buffer:
        value = random.Random(written).randbytes(1000)
        writes = [(f"t{t}", b"%d-%d" % (written, k), value) for t in range(tables) for k in range(20)]
        store.apply(writes, {})
        written += len(writes) * len(value)
        sizes = (t.property_int_value("rocksdb.cur-size-all-mem-tables") for t in store._tables.values())
        peak = max(peak, sum(sizes))
    assert len(list(store.scan("t7"))) == written / tables / 1000
    assert peak < 2 * tables * buffer + buffer
    assert 0 < stores._cache.get_usage() <= cache
    store.close()


def test_a_look_up_reads_few_blocks_of_a_large_file(tmp_path: Path) -> None:
    """The filter of a file of a million rows is larger than a shard of the block cache, which then never
    kept it: each look-up read 1.5 MB, and took 150 us instead of ten.
    """
    rows, looked_up = 500_000, 2000
    store = RocksStores(tmp_path, cache_bytes=4 << 20).open(0)
    for first in range(0, rows, 20_000):
        numbers = range(first, first + 20_000)
        store.apply((("rows", b"%09d" % (n * 7919 % rows), b"%09d" % n) for n in numbers), {})
    store._tables["rows"].compact_range(None, None)  # into one file
    before = psutil.Process().io_counters().read_chars
    for n in random.Random(4).sample(range(rows), looked_up):
        assert store.get("rows", b"%09d" % n) is not None
    assert (psutil.Process().io_counters().read_chars - before) / looked_up < 64 * 1024
    store.close()
