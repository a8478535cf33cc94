"""Records of a sound batch, from what the client library reads them into to what a lane takes. Compiled with
the hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from streams.ports import TP, OwnRecord, Record
from streams.records.batches import MAX_HEADERS, Plain

Fields = tuple[Any, ...]
#: A NamedTuple's constructor is a Python function; these are not. Nor are they aiokafka's `ConsumerRecord`,
#: which takes more time, and twice the memory.
_own: Final[Callable[[Fields], Record]] = partial(tuple.__new__, OwnRecord)
_plain: Final[Callable[[Fields], Record]] = partial(tuple.__new__, Plain)


class SoundRecords:
    """The records of one batch in their order, up to the first odd one.

    Attributes:
        is_odd: whether the client library cannot read one, or `walk` would find another offset for it: a
            client chooses offsets within its batch, and brokers do not look at those that are not compressed.
    """

    __slots__ = ("_before", "_ended", "_last", "_make", "_most", "_place", "_records", "is_odd")

    def __init__(self, records: Iterator[Any], place: TP, base: int, most: int, own: bool) -> None:  # noqa: FBT001
        """`base` is the batch's first offset, `most` the last that its first record may have. With `own` they
        come as `OwnRecord`.
        """
        self._records = records
        self._place = place
        self._before = base - 1
        self._most = most
        self._make = _own if own else _plain
        self._last: Any = None
        self._ended = False
        self.is_odd = False

    def take(self, number: int) -> list[Record]:
        """The next records, at most so many; none: that was the last one, or the next one is odd. Each comes
        when the one after it was read, too, since what is behind the last one tells whether that is whole.
        """
        found: list[Record] = []
        topic, partition = self._place
        while not self._ended and len(found) < number:
            try:
                record = next(self._records, None)
            except Exception:  # noqa: BLE001 - looked for again by `read_batch`, which says what it is
                self._ended = self.is_odd = True
                break
            last = self._last
            if last is not None:
                fields = (last.timestamp, last.key, last.value, tuple(last.headers))
                found.append(self._make((topic, partition, self._before, *fields)))
            if record is None:
                self._ended = True
                break
            offset: int = record.offset
            if not self._before < offset <= self._most or len(record.headers) > MAX_HEADERS:
                self._ended = self.is_odd = True
                break
            self._before, self._last = offset, record
            self._most += 1
        return found
