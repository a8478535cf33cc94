"""A lane's store on the disk, written as lanes write it, against what is rebuilt from the changelog."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from good_post import Written
from good_run import logged

from chaos.evidence.rebuilt import Compared, Place, Rebuilt, compare
from chaos.evidence.stores import copies_in, read_copy
from streams.engine.staging.changes import Change, Writes
from streams.engine.staging.inbox import DAY, inbox_entry
from streams.engine.staging.timers import remove_timer, set_timer
from streams.errors import StoreBroken, StoreBusy
from streams.host.rocksdb.store import RocksStores
from streams.model.row_keys import row_key
from streams.ports import TP, Outgoing, Store, Write

pytestmark = pytest.mark.slow("a second of stores")

LANES = 2
LANE, PARTITION = 1, 3
NOW_MS = 1_800_000_000_000
RING = set_timer(b"h\0k", NOW_MS / 1000, "bell", Outgoing(b"k", b"ring", []))
CHANGES = (
    Change("stock", row_key(b"cd-1"), b"one"),
    Change("stock", row_key(b"cd-2"), b"two"),
    Change("stock", row_key(b"cd-1"), b"three"),
    Change("stock", row_key(b"cd-2"), None),
    Change("inbox", *inbox_entry(b"12345678m-1", NOW_MS, b"noted")),
    Change("inbox", *inbox_entry(b"12345678m-2", NOW_MS + int(20 * DAY * 1000), b"")),
    Change("lane", b"porders", b"17"),
    RING,
    set_timer(b"h\0l", NOW_MS / 1000, "bell", Outgoing(b"l", b"ring", [])),
    remove_timer(b"h\0l"),
)


@dataclass
class Lane:
    stores: RocksStores
    rebuilt: Rebuilt = field(default_factory=lambda: Rebuilt(LANES))
    ends: dict[TP, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store: Store = self.stores.open(LANE)
        self.writes = Writes(inbox_bucket=7 * DAY)

    def log(self, *changes: Change) -> None:
        for change in changes:
            tp = TP(f"app-{change.table}-changelog", PARTITION)
            self.rebuilt.add(change.table, Written(*tp, self.ends.get(tp, 0), *logged(change)))
            self.ends[tp] = self.ends.get(tp, 0) + 2

    def write(self, *changes: Change, behind: Mapping[str, int] | None = None) -> None:
        """To the store, with positions just before the last markers, as a lane does."""
        behind = behind or {}
        positions = {tp: end - 1 - behind.get(tp.topic, 0) for tp, end in self.ends.items()}
        writes = [w for c in changes for w in self.writes.of(c.table, PARTITION, [logged(c)])]
        self.store.apply(writes, positions)

    def closed(self) -> Path:
        self.write(*CHANGES)
        self.store.close()
        return self.stores.path(LANE)

    def compared(self) -> Compared:
        self.store.close()
        return compare(read_copy(self.stores.path(LANE)), self.rebuilt, self.ends)


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    lane = Lane(RocksStores(tmp_path / "workers" / "app" / "slot-0" / "4-partitions-2-lanes"))
    lane.log(*CHANGES)
    return lane


def test_a_store_that_a_lane_has_written_equals_its_changelogs(lane: Lane) -> None:
    lane.write(*CHANGES)
    assert lane.compared() == Compared("slot-0/4-partitions-2-lanes/lane-1", LANE, Place.AT_END, (), rows=5)


def test_what_was_never_flushed_is_read_as_well(lane: Lane, tmp_path: Path) -> None:
    """A killed worker leaves it in the write-ahead log."""
    lane.write(*CHANGES)
    killed = tmp_path / "copied-while-open" / "lane-1"
    shutil.copytree(lane.stores.path(LANE), killed)
    copied = compare(read_copy(killed), lane.rebuilt, lane.ends)
    assert (copied.place, copied.differences) == (Place.AT_END, ())


@pytest.mark.parametrize(
    ("spoil", "difference"),
    [
        (("stock", b"\0\3" + row_key(b"cd-1"), b"other"), "stock b'\\x00\\x03\\x00\\x04cd-1' differs"),
        (("stock", b"\0\3" + row_key(b"cd-1"), None), "stock b'\\x00\\x03\\x00\\x04cd-1' is missing"),
        (("stock", b"\0\1x", b"more"), "stock b'\\x00\\x01x' is not in the changelog"),
        (("strange", b"\0\1x", b"more"), "strange b'\\x00\\x01x' is not in the changelog"),
        (("_positions", b"\0\3orders", b"16"), "_positions b'\\x00\\x03orders' differs"),
        (("_timers", b"\0\3h\0k", None), "_timers b'\\x00\\x03h\\x00k' is missing"),
        (("_timers_by_due", NOW_MS.to_bytes(8, "big") + b"\0\3h\0k", None), "_timers_by_due"),
        (("_inbox-00000001", b"\0\x0312345678m-9", b""), "m-9' is not in the changelog"),
    ],
)
def test_a_row_that_is_not_the_changelogs_is_found(lane: Lane, spoil: Write, difference: str) -> None:
    lane.write(*CHANGES)
    lane.store.apply([spoil], {})
    (found,) = lane.compared().differences
    assert difference in found


def test_an_inbox_entry_that_was_lost_is_found(lane: Lane) -> None:
    lane.write(*CHANGES)
    lane.store.drop(lane.writes.inbox_table(NOW_MS))
    (found,) = lane.compared().differences
    assert found == "inbox b'\\x00\\x0312345678m-1' is missing"


def test_a_copy_that_lacks_the_last_records_is_behind(lane: Lane) -> None:
    lane.write(*CHANGES[:-1], behind={"app-lane-changelog": 2})
    assert lane.compared().place is Place.BEHIND


def test_a_copy_positioned_beyond_the_log_is_ahead(lane: Lane) -> None:
    lane.write(*CHANGES, behind={"app-stock-changelog": -2})
    compared = lane.compared()
    assert compared.place is Place.AHEAD
    assert compared.differences == ("app-stock-changelog[3] at 9, its end is 8",)


def test_stores_of_as_many_lanes_are_found(lane: Lane, tmp_path: Path) -> None:
    assert copies_in(tmp_path, 2) == [lane.stores.path(LANE)]
    assert copies_in(tmp_path, 1) == copies_in(tmp_path, 12) == []
    lane.store.close()
    shutil.rmtree(lane.stores.path(LANE))
    lane.stores.path(LANE).mkdir()  # wiped, and never filled again
    assert copies_in(tmp_path, 2) == []


def test_reading_changes_nothing(lane: Lane) -> None:
    path = lane.closed()
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    read_copy(path)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


HOLDS = """
import sys
from pathlib import Path
from streams.host.rocksdb.store import RocksStores
store = RocksStores(Path(sys.argv[1]).parent).open(1)
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """By another process: a lock of our own would not stop us."""
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"open\n"
        yield
        holder.communicate()


@pytest.mark.stack
def test_a_store_in_use_is_refused(lane: Lane) -> None:
    path = lane.closed()
    with _held(path), pytest.raises(StoreBusy, match="end the workers"):
        read_copy(path)


def test_a_store_that_cannot_be_read_is_broken(lane: Lane) -> None:
    path = lane.closed()
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(StoreBroken, match="lane-1"):
        read_copy(path)
