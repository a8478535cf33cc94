"""The transactional producers that have written for a lane: what they have marked as handled is handled.

Brokers give them their ids and write those into each batch, so no other client's record has one. The same
transactional id keeps its producer id, until it was unused for long or its epochs are used up; another cut
has other transactional ids. So each id is recorded in the transaction with which its first records are
written (docs/adr/0046-loopback.md).

An earlier version recorded none. What it has left unread in topics that lanes alone write is bounded by their
ends when a lane opens for the first time after it; below those any transactional producer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from streams.engine.staging.changes import OWN_PRODUCERS, POSITIONS, Change
from streams.engine.staging.keys import PRODUCERS, position_key, prefix_of, store_key
from streams.model.application import Application
from streams.model.layout import LANE
from streams.ports import TP, Store

#: Ids that are kept of a partition, the newest ones: what older ones have written was read long ago.
MOST = 32
#: The name of what an earlier version may have left unread: an offset and a topic in each line.
FORMER = b"former"


class OwnProducers:
    """Producers of the partitions of one lane."""

    def __init__(
        self,
        app: Application,
        lane: int,
        store: Store,
        trust: Callable[[frozenset[int], Mapping[TP, int]], None],
    ) -> None:
        """`trust` is called with all of them when there is another one, and with the offsets below which any
        counts.
        """
        self._app = app
        self._store = store
        self._trust = trust
        self._newest = -1
        partitions = app.layout.partitions_of(lane)
        self._kept = {partition: _read(store, partition) for partition in partitions}
        self._former = {partition: _read_former(store, partition) for partition in partitions}

    def unrecorded(self, tps: Iterable[TP]) -> list[TP]:
        """Partitions of which an earlier version has handled something, and recorded no producers."""
        partitions = self._app.layout.partitions
        return [
            tp
            for tp in tps
            if self._kept.get(tp.partition) == ()
            and (route := self._app.routes.get(tp.topic)) is not None
            and not route.inbox
            and self._store.get(POSITIONS, position_key(tp, partitions)) is not None
        ]

    def begin(self, positions: Mapping[TP, int], ends: Mapping[TP, int]) -> dict[bytes, Change]:
        """A lane opens, at these positions; `ends` are those of what is `unrecorded`. Returns changes as
        `follow` does.
        """
        changes: dict[bytes, Change] = {}
        for partition, former in self._former.items():
            found = {**former, **{tp: end for tp, end in ends.items() if tp.partition == partition}}
            left = {tp: end for tp, end in found.items() if positions.get(tp, end) < end}
            if left != former:
                self._former[partition] = left
                value = b"\n".join(b"%d %s" % (end, tp.topic.encode()) for tp, end in left.items())
                changes[store_key(partition, PRODUCERS + FORMER)] = Change(
                    LANE, PRODUCERS + FORMER, value or None
                )
        return changes

    def follow(self, producer_id: int) -> dict[bytes, Change]:
        """Changes of the lane's table by local key that the next transaction of a producer is to have; none
        where all partitions know it.
        """
        changes: dict[bytes, Change] = {}
        if producer_id == self._newest:
            return changes
        self._newest = producer_id
        for partition, ids in self._kept.items():
            if producer_id not in ids:
                self._kept[partition] = (*ids, producer_id)[-MOST:]
                value = b" ".join(b"%d" % each for each in self._kept[partition])
                changes[store_key(partition, PRODUCERS)] = Change(LANE, PRODUCERS, value)
        former = {tp: end for ends in self._former.values() for tp, end in ends.items()}
        self._trust(frozenset(each for ids in self._kept.values() for each in ids), former)
        return changes


def _read(store: Store, partition: int) -> tuple[int, ...]:
    data = store.get(OWN_PRODUCERS, prefix_of(partition))
    return tuple(map(int, (data or b"").split()))


def _read_former(store: Store, partition: int) -> dict[TP, int]:
    lines = (store.get(OWN_PRODUCERS, prefix_of(partition) + FORMER) or b"").splitlines()
    ends = (line.split(b" ", 1) for line in lines)
    return {TP(topic.decode(), partition): int(end) for end, topic in ends}
