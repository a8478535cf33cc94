"""The order of commits: entries as their messages came, and which of them may be committed now.

Entries of a key are committed in the order they came, over all topics: a later one may have read rows of an
earlier one. Other keys, and other partition numbers, do not wait (docs/adr/0044-only-keys-wait.md).
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

#: Ranges that are kept above a position at most, and keys that others pass by.
MOST_RANGES: Final = 256
MOST_KEYS: Final = 4_096
NOTHING_AHEAD: Final[Mapping[TP, Collection[Range]]] = {}


class _Look:
    """A look along the entries of a partition number, in order: which may go, though others do not.

    Attributes:
        first, last: by topic, the offsets of the first and the last entry that stays.
    """

    def __init__(self, max_ahead: int, ahead: Mapping[TP, Ahead]) -> None:
        self.first: dict[TP, int] = {}
        self.last: dict[TP, int] = {}
        self._keys: set[bytes] = set()
        self._max_ahead = max_ahead
        self._ahead = ahead

    def may_go(self, entry: Entry) -> bool:
        """Whether an entry is done, and nothing of its key stays."""
        if not entry.done or entry.key is None or entry.key in self._keys:
            return False
        if entry.tp is None or (first := self.first.get(entry.tp)) is None:
            return True
        ahead = self._ahead.get(entry.tp)
        return entry.next_offset - first <= self._max_ahead and (ahead is None or len(ahead) < MOST_RANGES)

    def waits(self, entry: Entry) -> bool:
        """An entry stays. False: so does all that comes after it."""
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
        """`ids_bytes` is what a record of the inbox's changelog has at most, or one entry more. `max_ahead`
        is how far above a position messages are committed while it is held up, in offsets; 0: they wait.
        """
        self._layout = layout
        self._changelogs = Changelogs(layout, ids_bytes)
        self._max_ahead = max_ahead
        #: What is handled above positions, where there is anything; and where the last of it ended that came.
        self._ahead: dict[TP, Ahead] = {}
        self._ahead_to: dict[TP, int] = {}
        #: The newest messages that were committed so, by their offsets.
        self._newest_ahead: dict[TP, int] = {}
        #: The offsets to which positions have moved over that, until the lane has taken the records before
        #: them. After opening, it has read those again, and may commit before it has taken them all.
        self._reached: dict[TP, int] = {}
        #: Partition numbers in which something has finished that was not looked at since.
        self._finished_in: set[int] = set()
        self._queues: dict[int, deque[Entry]] = {}
        self._newest: dict[TP, Entry] = {}
        self._advanced: dict[TP, int] = {}
        #: Whether positions have moved over messages that were handled when they were written.
        self.has_looped = False
        self._first: dict[bytes, Change] = {}
        #: Taken and not yet staged for a commit.
        self.backlog = 0
        self.backlog_bytes = 0
        #: Staged, and not known to be committed.
        self.in_commit = 0
        self.in_commit_bytes = 0
        self._oldest_in_commit = 0

    def add(self, entry: Entry) -> None:
        """Take an entry's place in the order; it may finish later: see `finished`."""
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
            # Between the two there is nothing but markers, and what was handled before it was read.
            if before is not None and not before.in_commit and before.next_offset < entry.offset:
                before.next_offset = entry.offset
            self._newest[entry.tp] = entry

    def finished(self, entry: Entry) -> None:
        """An entry that was added has decided, and is done."""
        entry.done = True
        self._count(entry)
        self._finished_in.add(entry.partition)

    def _count(self, entry: Entry) -> None:
        self.backlog_bytes -= entry.counted
        entry.counted = entry.weight
        self.backlog_bytes += entry.counted

    def advance_position(self, tp: TP, offset: int) -> None:
        """Only markers came up to `offset`. The position follows with the next transaction, or with one of
        its own when the lane is idle: a log that was cut up to here has lost nothing.
        """
        newest = self._newest.get(tp)
        if offset <= self._reached.get(tp, 0):
            return  # the position is there already
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
        """Record with the first transaction, or alone when nothing comes, where partitions begin that have no
        position yet, and changes of the lane's own table by local key. `ahead` is what was handled above the
        positions from which the lane reads.
        """
        self._advanced |= positions
        self._first = dict(changes)
        self._ahead = {tp: Ahead(ranges) for tp, ranges in ahead.items() if ranges}

    def record(self, changes: Mapping[bytes, Change]) -> None:
        """Further changes that the next transaction records, as above."""
        self._first |= changes

    def skip_committed(self, batch: Batch) -> Batch:
        """Return a batch without the records that were handled ahead of the position."""
        ahead, reached = self._ahead.get(batch.tp), self._reached.get(batch.tp, 0)
        if ahead is None and not reached:
            return batch
        if batch.next_offset > reached:
            self._reached.pop(batch.tp, None)  # what comes after it is above
        ahead = ahead or Ahead()
        records = [each for each in batch.records if each.offset >= reached and each.offset not in ahead]
        return Batch(batch.tp, records, batch.next_offset)

    @property
    def has_advanced(self) -> bool:
        """Whether positions have moved over markers alone, or have still to be recorded."""
        return bool(self._advanced or self._first)

    @property
    def has_first(self) -> bool:
        """Whether what is recorded first is not committed yet."""
        return bool(self._first)

    def is_over(self, messages: int, size: int) -> bool:
        """Whether so many messages wait to be staged, or so many bytes are held."""
        return self.backlog >= messages or self.uncommitted_bytes >= size

    def has_finished(self) -> bool:
        """Whether anything could be committed now."""
        if any(queue and queue[0].done for queue in self._queues.values()):
            return True
        return any(self._has_free(partition) for partition in list(self._finished_in))

    def _has_free(self, partition: int) -> bool:
        """Whether something in a partition number could be committed before what holds it up."""
        look = _Look(self._max_ahead, self._ahead)
        for entry in self._queues.get(partition, ()):
            if look.may_go(entry):
                return True
            if not look.waits(entry):
                break
        self._finished_in.discard(partition)
        return False

    def take(self, limit: int, max_bytes: int = 1 << 62) -> Staged:
        """Stage what has finished in every partition, as far as nothing of its key holds it up: `limit`
        messages at most, those that were looped included, and no more once they came to `max_bytes`.
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
        """Move a position over what was handled ahead of it. Returns how it is kept."""
        ahead = self._ahead[tp]
        offset = staged.offsets[tp] = self._reached[tp] = ahead.reached(staged.offsets[tp])
        if not ahead:
            del self._ahead[tp]
            self._ahead_to.pop(tp, None)
        return encode_position(offset, ahead.ranges)

    def committed(self) -> None:
        """Note that the last staged transaction is committed."""
        self.in_commit = self.in_commit_bytes = self._oldest_in_commit = 0

    @property
    def uncommitted(self) -> int:
        """Messages taken and not yet committed."""
        return self.backlog + self.in_commit

    @property
    def oldest(self) -> int:
        """When the oldest of them was written, about, epoch milliseconds: of each partition the first counts;
        0 when there is none.
        """
        return self._oldest_in_commit or self._oldest_head()

    def _oldest_head(self) -> int:
        heads = (queue[0].timestamp for queue in self._queues.values() if queue)
        return min((timestamp for timestamp in heads if timestamp), default=0)

    @property
    def uncommitted_bytes(self) -> int:
        """Their bytes."""
        return self.backlog_bytes + self.in_commit_bytes

    def _add_finished(self, staged: Staged, limit: int, max_bytes: int) -> None:
        for partition in list(self._queues):
            if limit <= 0 or max_bytes <= 0:
                return
            queue = self._queues[partition] = self._queues.pop(partition)  # next time the others come first
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
        """Take out what nothing of its key holds up, from behind what holds up the partition number; and of
        each whether it is ahead of its topic's position.
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
        """An entry is committed before others: the position of its topic stays, and says so. False: it is the
        first of its topic.
        """
        tp = entry.tp
        if tp is None or tp not in look.first:
            return False
        if self._newest.get(tp) is entry:
            self._newest_ahead[tp] = entry.offset
        ahead = self._ahead.setdefault(tp, Ahead())
        # Between two that came one after the other there is nothing but markers.
        follows = self._ahead_to.get(tp, -1)
        ahead.add(follows if look.last[tp] < follows <= entry.offset else entry.offset, entry.next_offset)
        self._ahead_to[tp] = entry.next_offset
        staged.offsets[tp] = look.first[tp]
        return True


def _fits(entry: Entry, limit: int, before: int) -> bool:
    """Whether a transaction that has `before` entries takes one more, with `limit` messages left: its first
    one it takes in any case.
    """
    return entry.messages <= limit or not before
