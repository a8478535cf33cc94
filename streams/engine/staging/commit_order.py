"""The commit order: entries in order of arrival, and which of them may be committed now.

Entries of a key are committed in order of arrival, across all topics, because a later one may have read rows
of an earlier one. Other keys and other partition numbers do not wait (docs/adr/0044-only-keys-wait.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

from streams.engine.staging.changelog import Changelogs, Staged
from streams.engine.staging.changes import IDS_BYTES, Change
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import POSITION, position_name, prefix_of
from streams.engine.staging.position import Ahead, Range, encode_position
from streams.model.layout import LANE, Layout
from streams.ports import TP, Batch

#: Maximum ranges kept above a position, and maximum unfinished keys that entries of other keys may overtake.
MOST_RANGES: Final = 256
MOST_KEYS: Final = 4_096
NOTHING_AHEAD: Final[Mapping[TP, Collection[Range]]] = {}


class _Look:
    """Walks the entries of a partition number in order, to find those that may overtake unfinished ones.

    Attributes:
        first, last: by partition, the offsets of the first and the last entry that stays.
    """

    def __init__(self, max_ahead: int, ahead: Mapping[TP, Ahead]) -> None:
        self.first: dict[TP, int] = {}
        self.last: dict[TP, int] = {}
        self._keys: set[bytes] = set()
        self._max_ahead = max_ahead
        self._ahead = ahead

    def may_go(self, entry: Entry) -> bool:
        """Whether an entry is done, no entry of its key stays before it, and it is not too far ahead."""
        if not entry.done or entry.key is None or entry.key in self._keys:
            return False
        if entry.tp is None or (first := self.first.get(entry.tp)) is None:
            return True
        ahead = self._ahead.get(entry.tp)
        return entry.next_offset - first <= self._max_ahead and (ahead is None or len(ahead) < MOST_RANGES)

    def waits(self, entry: Entry) -> bool:
        """Record that an entry stays. False: everything after it must stay, too."""
        if entry.key is None or self._max_ahead == 0 or len(self._keys) == MOST_KEYS:
            return False
        self._keys.add(entry.key)
        if entry.tp is not None:
            self.first.setdefault(entry.tp, entry.offset)
            self.last[entry.tp] = entry.offset
        return True


class CommitOrder:
    """Entries in arrival order for each partition number."""

    def __init__(self, layout: Layout, ids_bytes: int = IDS_BYTES, max_ahead: int = 0) -> None:
        """`ids_bytes` bounds a record of the inbox's changelog; the last entry may exceed it. `max_ahead` is
        how far above an unfinished message others are committed, in offsets; 0: they wait.
        """
        self._layout = layout
        self._changelogs = Changelogs(layout, ids_bytes)
        self._max_ahead = max_ahead
        #: Offsets handled above positions, by partition; and the end of the offsets that were added last.
        self._ahead: dict[TP, Ahead] = {}
        self._ahead_to: dict[TP, int] = {}
        #: Offsets of messages that were the newest of their partition when they were committed ahead.
        self._newest_ahead: dict[TP, int] = {}
        #: Offsets to which positions have moved over such messages, until the lane has taken all records
        #: below. After opening it reads those again, and may commit before it has taken them all.
        self._reached: dict[TP, int] = {}
        #: Partition numbers in which an entry has finished since the last check.
        self._finished_in: set[int] = set()
        self._queues: dict[int, deque[Entry]] = {}
        self._newest: dict[TP, Entry] = {}
        self._advanced: dict[TP, int] = {}
        #: Whether positions have moved over looped messages since the last transaction began.
        self.has_looped = False
        self._first: dict[bytes, Change] = {}
        #: Messages taken and not yet in a transaction.
        self.backlog = 0
        self.backlog_bytes = 0
        #: Messages in a transaction that is not known to be committed.
        self.in_commit = 0
        self.in_commit_bytes = 0
        self._oldest_in_commit = 0

    def add(self, entry: Entry) -> None:
        """Add an entry to the order. It may finish later: see `finished`."""
        queue = self._queues.get(entry.partition)
        if queue is None:
            queue = self._queues[entry.partition] = deque()
        queue.append(entry)
        self.backlog += 1
        self._count(entry)
        if entry.done:
            self._finished_in.add(entry.partition)
        if entry.tp is not None:
            before = self._newest.get(entry.tp)
            # Between the two are only markers, and messages that were handled before they were read.
            if before is not None and not before.in_commit and before.next_offset < entry.offset:
                before.next_offset = entry.offset
            self._newest[entry.tp] = entry

    def finished(self, entry: Entry) -> None:
        """Mark an entry as done, once all its handlers have decided."""
        entry.done = True
        self._count(entry)
        self._finished_in.add(entry.partition)

    def _count(self, entry: Entry) -> None:
        self.backlog_bytes -= entry.counted
        entry.counted = entry.weight
        self.backlog_bytes += entry.counted

    def advance_position(self, tp: TP, offset: int) -> None:
        """Move a position over markers up to `offset`. The next transaction commits it, or one of its own
        when the lane is idle. Then nothing counts as lost if retention deletes the log up to here.
        """
        newest = self._newest.get(tp)
        if offset <= self._reached.get(tp, 0):
            return  # the position is already there
        if newest is not None and not newest.in_commit:
            newest.next_offset = offset
        elif newest is not None and newest.offset == self._newest_ahead.get(tp) and self._is_held_up(tp):
            self._ahead[tp].add(newest.next_offset, offset)
            newest.next_offset = self._ahead_to[tp] = offset
        else:
            self._advanced[tp] = offset

    def _is_held_up(self, tp: TP) -> bool:
        return any(entry.tp == tp for entry in self._queues.get(self._layout.home_of(tp.partition), ()))

    def begin(
        self,
        positions: Mapping[TP, int],
        changes: Mapping[bytes, Change],
        ahead: Mapping[TP, Collection[Range]] = NOTHING_AHEAD,
    ) -> None:
        """Set what the first transaction records, even if no message comes: first `positions` of partitions,
        and `changes` of the lane's own table by local key. `ahead` has the ranges that were handled above the
        positions from which the lane reads.
        """
        self._advanced |= positions
        self._first = dict(changes)
        self._ahead = {tp: Ahead(ranges) for tp, ranges in ahead.items() if ranges}

    def record(self, changes: Mapping[bytes, Change]) -> None:
        """Add changes of the lane's own table that the next transaction records, even if no message comes."""
        self._first |= changes

    def skip_committed(self, batch: Batch) -> Batch:
        """Return a batch without the records that were already handled ahead of the position."""
        ahead, reached = self._ahead.get(batch.tp), self._reached.get(batch.tp, 0)
        if ahead is None and not reached:
            return batch
        if batch.next_offset > reached:
            self._reached.pop(batch.tp, None)  # later batches are above it
        ahead = ahead or Ahead()
        records = [each for each in batch.records if each.offset >= reached and each.offset not in ahead]
        return Batch(batch.tp, records, batch.next_offset)

    @property
    def has_advanced(self) -> bool:
        """Whether positions have moved without messages, or something from `begin` or `record` is pending."""
        return bool(self._advanced or self._first)

    @property
    def has_first(self) -> bool:
        """Whether changes from `begin` or `record` are pending."""
        return bool(self._first)

    def is_over(self, messages: int, size: int) -> bool:
        """Whether the backlog has so many messages, or what is not committed has so many bytes."""
        return self.backlog >= messages or self.uncommitted_bytes >= size

    def has_finished(self) -> bool:
        """Whether anything could be committed now."""
        if any(queue and queue[0].done for queue in self._queues.values()):
            return True
        return any(self._has_free(partition) for partition in list(self._finished_in))

    def _has_free(self, partition: int) -> bool:
        """Whether an entry in a partition number could overtake an unfinished one."""
        look = _Look(self._max_ahead, self._ahead)
        for entry in self._queues.get(partition, ()):
            if look.may_go(entry):
                return True
            if not look.waits(entry):
                break
        self._finished_in.discard(partition)
        return False

    def take(self, limit: int, max_bytes: int = 1 << 62) -> Staged:
        """Take finished entries of all partition numbers for a transaction, except those behind an unfinished
        entry of their key. Takes at most `limit` messages, including looped ones, but at least one entry, and
        no more once they have `max_bytes`.
        """
        staged = Staged(offsets=self._advanced)
        self._advanced, self.has_looped = {}, False
        if self._first:
            staged.changes[LANE], self._first = self._first, {}
        self._oldest_in_commit = self._oldest_head()
        before = self.backlog_bytes
        self._add_finished(staged, limit, max_bytes)
        self.backlog -= staged.messages
        self.in_commit, self.in_commit_bytes = staged.messages, before - self.backlog_bytes
        for tp, offset in staged.offsets.items():
            key = POSITION + position_name(tp, self._layout.partitions)
            changes = staged.changes.setdefault(LANE, {})
            value = b"%d" % offset if tp not in self._ahead else self._reach(staged, tp)
            changes[prefix_of(self._layout.home_of(tp.partition)) + key] = Change(LANE, key, value)
        for table, changes in staged.changes.items():
            self._changelogs.add(table, changes, staged.records)
        self._changelogs.add_ids(staged.ids, staged.records)
        return staged

    def _reach(self, staged: Staged, tp: TP) -> bytes:
        """Move a position over what was handled ahead of it. Returns the position in its stored form."""
        ahead = self._ahead[tp]
        offset = staged.offsets[tp] = self._reached[tp] = ahead.reached(staged.offsets[tp])
        if not ahead:
            del self._ahead[tp]
            self._ahead_to.pop(tp, None)
        return encode_position(offset, ahead.ranges)

    def committed(self) -> None:
        """Record that the last transaction is committed."""
        self.in_commit = self.in_commit_bytes = self._oldest_in_commit = 0

    @property
    def uncommitted(self) -> int:
        """Messages taken and not yet committed."""
        return self.backlog + self.in_commit

    @property
    def oldest(self) -> int:
        """About when the oldest uncommitted message was written, in epoch milliseconds; 0 if there is none.
        Only the first of each partition number counts.
        """
        return self._oldest_in_commit or self._oldest_head()

    def _oldest_head(self) -> int:
        heads = (queue[0].timestamp for queue in self._queues.values() if queue)
        return min((timestamp for timestamp in heads if timestamp), default=0)

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of messages taken and not yet committed."""
        return self.backlog_bytes + self.in_commit_bytes

    def _add_finished(self, staged: Staged, limit: int, max_bytes: int) -> None:
        for partition in list(self._queues):
            if limit <= 0 or max_bytes <= 0:
                return
            queue = self._queues[partition] = self._queues.pop(partition)  # next time, the others come first
            while max_bytes > 0 and queue and queue[0].done and _fits(queue[0], limit, staged.messages):
                entry = queue.popleft()
                limit -= entry.messages
                max_bytes -= entry.counted
                self.backlog_bytes -= entry.counted
                staged.add(entry)
            if queue and partition in self._finished_in:
                for entry, is_ahead in self._free(staged, partition, limit, max_bytes):
                    limit -= entry.messages
                    max_bytes -= entry.counted
                    self.backlog_bytes -= entry.counted
                    staged.add(entry, moves=not is_ahead)

    def _free(self, staged: Staged, partition: int, limit: int, max_bytes: int) -> list[tuple[Entry, bool]]:
        """Remove and return the entries that may overtake unfinished ones of other keys, each with whether it
        is ahead of its partition's position.
        """
        if limit <= 0 or max_bytes <= 0 or not self._has_free(partition):
            return []
        look = _Look(self._max_ahead, self._ahead)
        free: list[tuple[Entry, bool]] = []
        queue, rest = self._queues[partition], deque[Entry]()
        while queue:
            entry = queue.popleft()
            fits = max_bytes > 0 and _fits(entry, limit, staged.messages + len(free))
            if fits and look.may_go(entry):
                limit -= entry.messages
                max_bytes -= entry.counted
                free.append((entry, self._go_ahead(staged, entry, look)))
                continue
            rest.append(entry)
            if not look.waits(entry):
                break
        rest.extend(queue)
        self._queues[partition] = rest
        return free

    def _go_ahead(self, staged: Staged, entry: Entry, look: _Look) -> bool:
        """Record that an entry is committed ahead of its partition's position, which stays. False: no earlier
        entry of its partition stays, so it is not ahead.
        """
        tp = entry.tp
        if tp is None or tp not in look.first:
            return False
        if self._newest.get(tp) is entry:
            self._newest_ahead[tp] = entry.offset
        ahead = self._ahead.setdefault(tp, Ahead())
        # If it directly follows the last one, only markers are between the two.
        follows = self._ahead_to.get(tp, -1)
        ahead.add(follows if look.last[tp] < follows <= entry.offset else entry.offset, entry.next_offset)
        self._ahead_to[tp] = entry.next_offset
        staged.offsets[tp] = look.first[tp]
        return True


def _fits(entry: Entry, limit: int, before: int) -> bool:
    """Whether an entry fits into a transaction that has `before` entries, with `limit` messages left. The
    first entry always does.
    """
    return entry.messages <= limit or not before
