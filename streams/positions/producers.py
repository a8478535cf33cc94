"""Which transactional producers have written for a lane: what they have marked as handled is handled.

Brokers give them their ids and write those into each batch, so no other client's record has one. The same
transactional id keeps its producer id, until it was unused for long or its epochs are used up; another cut
has other transactional ids. So each id is recorded in the transaction with which its first records are
written (docs/adr/0046-loopback.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from streams.model.layout import LANE
from streams.ports import Store
from streams.staging.changes import OWN_PRODUCERS, Change
from streams.staging.keys import PRODUCERS, prefix_of, store_key

#: Ids that are kept of a partition, the newest ones: what older ones have written was read long ago.
MOST = 32


class OwnProducers:
    """Those of the partitions of one lane."""

    def __init__(
        self, store: Store, partitions: Collection[int], trust: Callable[[frozenset[int]], None]
    ) -> None:
        """`trust` is called with all of them when there is another one."""
        self._trust = trust
        self._newest = -1
        self._kept = {partition: _read(store, partition) for partition in partitions}

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
        self._trust(frozenset(each for ids in self._kept.values() for each in ids))
        return changes


def _read(store: Store, partition: int) -> tuple[int, ...]:
    data = store.get(OWN_PRODUCERS, prefix_of(partition))
    return tuple(map(int, (data or b"").split()))
