"""Where rows go when an application gets a multiple of its partitions (docs/adr/0067-reshard.md).

With `new` a multiple of `old`, the keys of old partition p are in the new partitions p, p + old, p + 2 old
and so on. So a key's row goes to one of those. Inbox ids and the states of handlers go to all of them; other
rows keep their partition number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from streams.engine.life.positions.identity import Recorded, decode, encode
from streams.engine.life.positions.review import is_changelog
from streams.engine.staging.keys import (
    HANDLER,
    IDENTITY,
    POSITION,
    PRODUCERS,
    QUEUE,
    TIMER,
    WAITING,
    position_name,
    position_of,
    split_lane_key,
)
from streams.engine.waiting.dead_letters.row import decode_letter, encode_letter, key_of
from streams.engine.waiting.queue import encode_message, read_message
from streams.model.layout import CLAIMS, DEAD_LETTERS, INBOX, LANE, Layout
from streams.model.row_keys import split_row_key

#: Bytes by which a row may grow, because its partition number may be larger.
_ROOM = 16


class Moved(NamedTuple):
    """A changelog record in its new partition."""

    partition: int
    key: bytes | None
    value: bytes


class RowMover:
    """Finds the new partitions of rows, and adapts the rows to them."""

    def __init__(self, old: Layout, new: Layout) -> None:
        self._old = old
        self._new = new

    def moved(self, table: str, partition: int, key: bytes | None, value: bytes) -> Iterator[Moved]:
        """The records that a row of an old partition becomes; none if the new application needs none."""
        if table == INBOX:  # an id is kept without the key of its message
            yield from (Moved(number, key, value) for number in self.spread(partition))
        elif table == LANE:
            yield from self._lane(partition, key or b"", value)
        elif table == DEAD_LETTERS:
            yield self._letter(partition, key, value)
        elif table == CLAIMS:  # any lane can keep an object
            yield Moved(partition, key, value)
        else:
            yield Moved(self.home(split_row_key(key or b"")[0], partition), key, value)

    def spread(self, partition: int) -> range:
        """The new partitions that an old one is split into."""
        return range(partition, self._new.partitions, self._old.partitions)

    def home(self, key: bytes, partition: int) -> int:
        """The new partition of a key's row. A row that is not in its key's partition keeps its number."""
        return self._new.partition_of(key) if self._old.partition_of(key) == partition else partition

    def _lane(self, partition: int, key: bytes, value: bytes) -> Iterator[Moved]:
        kind, name = split_lane_key(key)
        if kind == POSITION:
            source = position_of(name, partition)
            if not self._is_own(source.topic):
                number = self._new.home_of(source.partition)
                yield Moved(number, POSITION + position_name(source, self._new.partitions), value)
        elif kind == IDENTITY:
            yield Moved(partition, key, self._identity(value))
        elif kind == HANDLER:
            yield from (Moved(number, key, value) for number in self.spread(partition))
        elif kind in (TIMER, QUEUE, WAITING):
            number = self.home(split_row_key(name.partition(b"\0")[2])[0], partition)
            message = read_message(value) if kind == WAITING else None
            if message is not None and self._old.home_of(message.partition) == partition:
                value = encode_message(replace(message, partition=number))  # it was not forwarded to this one
            yield Moved(number, key, value)
        elif kind != PRODUCERS:  # the new lanes have producers of their own
            yield Moved(partition, key, value)

    def _identity(self, value: bytes) -> bytes:
        """The identity without topics named after the application, because the new one has its own."""
        recorded = decode(value)
        kept = {
            topic: ident
            for topic, ident in recorded.topics.items()
            if not self._is_own(topic) and not is_changelog(self._old, topic)
        }
        return encode(Recorded(recorded.cluster, kept))

    def _is_own(self, topic: str) -> bool:
        """Whether a source topic is named after the application. The new application has its own."""
        source = topic.removeprefix(f"{self._old.app_id}-").removesuffix("-repartition")
        return topic in (self._old.operations, self._old.repartition(source))

    def _letter(self, partition: int, key: bytes | None, value: bytes) -> Moved:
        try:
            letter = decode_letter(value)
        except (ValueError, IndexError):  # keep it unchanged; pages show that it cannot be read
            return Moved(partition, key, value)
        if letter.key is not None and self._old.partition_of(letter.key) == partition:
            # The lane of the key finds the dead letter by the partition number in it.
            added = letter.partition >= self._old.partitions
            number = self._new.partition_of(letter.key)
            if letter.home >= 0:
                letter = replace(letter, home=number, stamped=letter.stamped or added)
            else:
                letter = replace(letter, partition=number, stamped=letter.stamped or added)
        number = self._new.home_of(letter.partition) if letter.home < 0 else letter.home
        moved = encode_letter(letter, len(value) + _ROOM)
        return Moved(number, key_of(letter, self._new.partitions), moved)
