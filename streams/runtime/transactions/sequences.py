"""Which number a producer's next record to a partition has."""

from __future__ import annotations

from streams.ports import TP
from streams.runtime.transactions.requests import Owner, TransactionAnswer

#: After the highest number comes 0.
_NUMBERS = 2**31


class ProducerSequences:
    """An owner and the numbers of its records. They count within an epoch."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._next: dict[TP, int] = {}

    def next(self, tp: TP) -> int:
        """The number of the next record."""
        return self._next.get(tp, 0)

    def written(self, tp: TP, records: int) -> None:
        """The partition's leader has so many more."""
        self._next[tp] = (self.next(tp) + records) % _NUMBERS

    def renew(self, outcome: TransactionAnswer) -> None:
        """The transaction has ended. Where that raised the epoch, or gave a new producer id since epochs are
        used up, numbers begin at 0 again.
        """
        if outcome.producer_id < 0:
            return
        self.owner = Owner(self.owner.transactional_id, outcome.producer_id, outcome.epoch)
        self._next.clear()
