"""Layout of the keys of rows: in changelogs, in the lane's store, and in the local indexes.

    changelog key       the key of a row in its table's changelog
    lane key            a changelog key of the lane's own table: its kind (1 byte), then a name
    local key           partition (2 bytes), then the changelog key, so that a partition's rows lie together
    local name          partition (2 bytes), then the name of a lane key; used in a table for each kind
    due entry           due time (8 bytes), then a local name
    place               handler (8 bytes), then due time (8 bytes): the place of a queue in its index
    queue entry         place, then a local name

Times are epoch milliseconds. Numbers are big-endian, so that keys sort by them.
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

#: Lengths in bytes of a partition, a time and a place.
PARTITION: Final = 2
TIME: Final = 8
PLACE: Final = 16

#: Prefixes of the first partitions, cached because each message needs one.
_PREFIXES: Final = [number.to_bytes(PARTITION, "big") for number in range(1024)]


def prefix_of(partition: int) -> bytes:
    """The prefix of a partition's local keys."""
    return _PREFIXES[partition] if 0 <= partition < 1024 else partition.to_bytes(PARTITION, "big")


def store_key(partition: int, key: bytes) -> bytes:
    """The local key of a changelog key."""
    return prefix_of(partition) + key


def split_store_key(local: bytes) -> tuple[int, bytes]:
    """The (partition, changelog key) of a local key, or the (partition, name) of a local name."""
    return int.from_bytes(local[:PARTITION], "big"), local[PARTITION:]


def prefix_in(local: bytes) -> bytes:
    """The partition of a local key or name, still encoded."""
    return local[:PARTITION]


def name_in(local: bytes) -> bytes:
    """A local key or local name without its partition."""
    return local[PARTITION:]


def position_name(tp: TP, partitions: int) -> bytes:
    """The name of a source position: the topic. For a partition above the application's `partitions`, which
    someone has added, it is the topic and the partition.
    """
    return (tp.topic if tp.partition < partitions else f"{tp.topic}:{tp.partition}").encode()


def position_of(name: bytes, partition: int) -> TP:
    """The topic partition of a source position, from its name and its partition number."""
    topic, _, added = name.decode().partition(":")
    return TP(topic, int(added) if added else partition)


def position_key(tp: TP, partitions: int) -> bytes:
    """The local name of a source position."""
    return store_key(tp.partition % partitions, position_name(tp, partitions))


def split_lane_key(key: bytes) -> tuple[bytes, bytes]:
    """The (kind, name) of a lane key."""
    return key[:1], key[1:]


def local_lane_key(kind: bytes, local_name: bytes) -> bytes:
    """The local key in the lane's own table, from a kind and a local name."""
    return local_name[:PARTITION] + kind + local_name[PARTITION:]


def split_local_lane_key(local: bytes) -> tuple[bytes, bytes]:
    """The (kind, local name) of a local key in the lane's own table."""
    return local[PARTITION : PARTITION + 1], local[:PARTITION] + local[PARTITION + 1 :]


def time_key(ms: int) -> bytes:
    """A time in epoch milliseconds, encoded for keys and values."""
    return ms.to_bytes(TIME, "big")


def time_in(data: bytes) -> int:
    """The time at the beginning of a key or value, in epoch milliseconds."""
    return int.from_bytes(data[:TIME], "big")


def after_time(data: bytes) -> bytes:
    """The part of a key or value after its time."""
    return data[TIME:]


def split_queue_entry(entry: bytes) -> tuple[bytes, bytes]:
    """The (place, local name) of a queue entry."""
    return entry[:PLACE], entry[PLACE:]
