"""How the keys of rows are laid out: in changelogs, in the lane's store, and in the local indexes.

    changelog key       what the table calls the row
    lane key            a changelog key of the lane's own table: its kind (1 byte), then a name
    local key           partition (2 bytes), then the changelog key: the rows of a partition lie together
    local name          partition (2 bytes), then the name of a lane key: in the tables that it spreads into
    due entry           due time (8 bytes), then a local name
    place               handler (8 bytes), then due time (8 bytes): where a queue stands in its index
    queue entry         place, then a local name

Times are epoch milliseconds, numbers big-endian, so that bytes sort as they do.
"""

from __future__ import annotations

from typing import Final

from streams.ports import TP

#: Kinds of lane keys.
POSITION: Final = b"p"
TIMER: Final = b"t"
QUEUE: Final = b"q"
WAITING: Final = b"w"
HANDLER: Final = b"h"
IDENTITY: Final = b"i"
PRODUCERS: Final = b"o"

#: Bytes of a partition, of a time, and of a place.
PARTITION: Final = 2
TIME: Final = 8
PLACE: Final = 16

#: Those of the first partitions, made once: each message needs one.
_PREFIXES: Final = [number.to_bytes(PARTITION, "big") for number in range(1024)]


def prefix_of(partition: int) -> bytes:
    """The prefix of a partition's local keys: its rows lie together."""
    return _PREFIXES[partition] if 0 <= partition < 1024 else partition.to_bytes(PARTITION, "big")


def store_key(partition: int, key: bytes) -> bytes:
    """The local key of a changelog key."""
    return prefix_of(partition) + key


def split_store_key(local: bytes) -> tuple[int, bytes]:
    """The (partition, changelog key) of a local key; of a local name, (partition, name)."""
    return int.from_bytes(local[:PARTITION], "big"), local[PARTITION:]


def prefix_in(local: bytes) -> bytes:
    """The partition of a local key or name, as it stands there."""
    return local[:PARTITION]


def name_in(local: bytes) -> bytes:
    """A local key without its partition; a local name without it."""
    return local[PARTITION:]


def position_name(tp: TP, partitions: int) -> bytes:
    """The name of a source position: the topic; of a partition above the application's `partitions`, which
    somebody has added, the topic and its number.
    """
    return (tp.topic if tp.partition < partitions else f"{tp.topic}:{tp.partition}").encode()


def position_of(name: bytes, partition: int) -> TP:
    """The partition of a topic that a position of this name, in a partition number, is of."""
    topic, _, added = name.decode().partition(":")
    return TP(topic, int(added) if added else partition)


def position_key(tp: TP, partitions: int) -> bytes:
    """The local name of a source position."""
    return store_key(tp.partition % partitions, position_name(tp, partitions))


def split_lane_key(key: bytes) -> tuple[bytes, bytes]:
    """The (kind, name) of a lane key."""
    return key[:1], key[1:]


def local_lane_key(kind: bytes, local_name: bytes) -> bytes:
    """The local key in the lane's own table of what has a local name."""
    return local_name[:PARTITION] + kind + local_name[PARTITION:]


def split_local_lane_key(local: bytes) -> tuple[bytes, bytes]:
    """The (kind, local name) that `local_lane_key` was made of."""
    return local[PARTITION : PARTITION + 1], local[:PARTITION] + local[PARTITION + 1 :]


def time_key(ms: int) -> bytes:
    """A time as it stands in keys and values."""
    return ms.to_bytes(TIME, "big")


def time_in(data: bytes) -> int:
    """The time that a due entry, or a value with one, begins with."""
    return int.from_bytes(data[:TIME], "big")


def after_time(data: bytes) -> bytes:
    """The part of a key behind its time."""
    return data[TIME:]


def split_queue_entry(entry: bytes) -> tuple[bytes, bytes]:
    """The (place, local name) of a queue entry."""
    return entry[:PLACE], entry[PLACE:]
