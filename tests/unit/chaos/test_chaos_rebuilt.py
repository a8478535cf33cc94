"""What lanes write to their stores and what the checker rebuilds from changelogs agree on any history."""

from collections.abc import Sequence

from good_post import Written
from good_run import logged
from hypothesis import given
from hypothesis import strategies as st

from chaos.evidence.rebuilt import Place, Rebuilt, compare
from chaos.evidence.stores import Copy
from streams.engine.staging.changes import Change, Writes
from streams.engine.staging.inbox import inbox_entry
from streams.engine.staging.timers import remove_timer, set_timer
from streams.engine.waiting.operations.pauses import set_pause
from streams.model.operations import HandlerPause, PauseState
from streams.ports import TP, Outgoing

History = Sequence[tuple[int, Sequence[Change]]]
LANES = 2
KEYS = st.sampled_from([b"a", b"b", b"\0\1"])
TIMES = st.integers(0, 5)
RING = Outgoing(b"k", b"ring", [])
PAUSES = st.builds(HandlerPause, st.sampled_from(PauseState), st.just("ann"), st.just("so"), TIMES)

rows = st.builds(
    lambda *fields: Change(*fields),
    st.sampled_from(["stock", "orders"]),
    KEYS,
    st.none() | st.binary(max_size=2),
)
positions = st.builds(lambda topic, at: Change("lane", b"p" + topic, b"%d" % at), KEYS, TIMES)
timers = st.builds(lambda name, due: set_timer(name, due, "bell", RING), KEYS, TIMES) | st.builds(
    remove_timer, KEYS
)
pauses = st.builds(set_pause, st.sampled_from("ab"), st.none() | PAUSES)
#: A message is handled once: of an inbox entry there is no second version.
entries = st.lists(st.tuples(KEYS, TIMES), unique_by=lambda entry: entry[0]).map(
    lambda found: [Change("inbox", *inbox_entry(key, time, b"note")) for key, time in found]
)
changes = st.tuples(st.lists(rows | positions | timers | pauses, max_size=20), entries).map(
    lambda both: both[0] + both[1]
)
histories = st.lists(st.tuples(st.integers(0, 3), changes), max_size=4)


class Disk:
    """A lane's store in memory, written as `streams.engine.staging.changes` says."""

    def __init__(self, lane: int) -> None:
        self.copy = Copy("slot-0", lane)
        self._writes = Writes(inbox_bucket=0.002)

    def write(self, partition: int, change: Change, end: int) -> None:
        for table, key, value in self._writes.of(change.table, partition, [logged(change)]):
            held = self.copy.tables.setdefault(table, {})
            held.pop(key, None)
            if value is not None:
                held[key] = value
        self.copy.positions[TP(topic_of(change), partition)] = end


def topic_of(change: Change) -> str:
    return f"app-{change.table}-changelog"


def replay(history: History) -> tuple[Rebuilt, dict[TP, int], list[Disk]]:
    rebuilt, ends = Rebuilt(LANES), dict[TP, int]()
    disks = [Disk(lane) for lane in range(LANES)]
    seen: set[tuple[int, bytes]] = set()
    for partition, changes in history:
        for change in changes:
            if change.table == "inbox" and (partition, change.key) in seen:
                continue
            seen.add((partition, change.key))
            tp = TP(topic_of(change), partition)
            ends[tp] = ends.get(tp, 0) + 1
            rebuilt.add(change.table, Written(*tp, ends[tp] - 1, *logged(change)))
            disks[partition % LANES].write(partition, change, ends[tp])
    return rebuilt, ends, disks


@given(histories)
def test_a_store_written_by_lanes_equals_its_changelogs(history: History) -> None:
    rebuilt, ends, disks = replay(history)
    for disk in disks:
        compared = compare(disk.copy, rebuilt, ends)
        assert (compared.place, compared.differences) == (Place.AT_END, ())


@given(histories, st.data())
def test_any_altered_or_removed_row_is_found(history: History, data: st.DataObject) -> None:
    rebuilt, ends, disks = replay(history)
    held = [
        (disk.copy, table, key)
        for disk in disks
        for table, those in disk.copy.tables.items()
        for key in those
        if table != "_timers_by_due"  # of which some are stale
    ]
    if not held:
        return
    copy, table, key = data.draw(st.sampled_from(held))
    if data.draw(st.booleans()):
        copy.tables[table][key] += b"!"
    else:
        del copy.tables[table][key]
    assert len(compare(copy, rebuilt, ends).differences) == 1
