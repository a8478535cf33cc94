"""The ids of the transactional producers that have written for a lane. The lane trusts their records when
these say that they are already handled.

Brokers assign producer ids and write them into each batch, so no other client's record has one of these. A
transactional id keeps its producer id until it was unused for long or its epochs are used up, and another
lane count has other transactional ids. So each producer id is recorded in the transaction that writes its
first records (docs/adr/0046-loopback.md).

An earlier version recorded no ids. Its unread records in topics that only lanes write lie below the ends of
these topics when a lane first opens under this version. Below those ends any transactional producer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from streams.engine.staging.changes import OWN_PRODUCERS, POSITIONS, Change
from streams.engine.staging.keys import PRODUCERS, position_key, prefix_of, store_key
from streams.model.application import Application
from streams.model.layout import LANE
from streams.ports import TP, Store

#: Newest ids kept for each partition. Records of older producers were read long ago.
MOST = 32
#: Name of the row with the ends of what an earlier version may have left unread: an offset and a topic in
#: each line.
FORMER = b"former"


class OwnProducers:
    """The producer ids of the partitions of one lane."""

    def __init__(
        self,
        app: Application,
        lane: int,
        store: Store,
        trust: Callable[[frozenset[int], Mapping[TP, int]], None],
    ) -> None:
        """`trust` is called when the lane's producer id changes, with all recorded ids and with the offsets
        below which any transactional producer counts.
        """
        self._app = app
        self._store = store
        self._trust = trust
        self._newest = -1
        partitions = app.layout.partitions_of(lane)
        self._kept = {partition: _read(store, partition) for partition in partitions}
        self._former = {partition: _read_former(store, partition) for partition in partitions}

    def unrecorded(self, tps: Iterable[TP]) -> list[TP]:
        """Partitions of topics without an inbox that an earlier version has handled messages from, without
        recording producer ids.
        """
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
        """Begin an opening of the lane at these positions. `ends` has the end offsets of the partitions that
        `unrecorded` has returned. Returns changes as `follow` does.
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
        """Note a producer id. Returns changes of the lane's table, by local key, for this producer's next
        transaction; none if all partitions have the id recorded.
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
