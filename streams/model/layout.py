"""How an application is cut: partitions for good, lanes as what is owned together (docs/adr/0001)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64

from streams.errors import SettingsError

_MASK: Final = 0xFFFFFFFF

#: Built-in tables beside the application's own; their changelogs are named alike.
INBOX: Final = "inbox"  # ids of what has been handled; the local copy is cut into time buckets
LANE: Final = "lane"  # source positions and topics, timers, messages that wait, and handlers that are paused
DEAD_LETTERS: Final = "dead_letters"  # what was given up, for an operator to put right
CLAIMS: Final = "claims"  # objects that messages refer to; only where there are claim checks
BUILT_IN: Final[tuple[str, ...]] = (INBOX, LANE, DEAD_LETTERS)


def murmur2(data: bytes) -> int:
    """Kafka's key hash, as its Java client's `Utils.murmur2` computes it, unsigned."""
    m: i64 = 0x5BD1E995
    size: i64 = len(data)
    whole = size & ~3
    h: i64 = 0x9747B28C ^ size
    at: i64 = 0
    while at < whole:
        k = ((data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24) * m) & _MASK
        h = (h * m ^ (k ^ (k >> 24)) * m) & _MASK
        at += 4
    if at < size:
        while at < size:
            h ^= data[at] << 8 * (at - whole)
            at += 1
        h = (h * m) & _MASK
    h = ((h ^ (h >> 13)) * m) & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner puts a key in."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@dataclass(frozen=True, slots=True)
class Layout:
    """The application's id, partition count and lane count, and the names that follow from them."""

    app_id: str
    partitions: int
    lanes: int

    def __post_init__(self) -> None:
        if not 0 < self.lanes <= self.partitions:
            raise SettingsError(
                f"{self.lanes} lanes over {self.partitions} partitions: use 1 to {self.partitions} lanes"
                " (STEADFAUST_LANES), or set STEADFAUST_PARTITIONS"
            )

    def lane_of(self, partition: int) -> int:
        """The lane that owns a partition number, over all topics."""
        return partition % self.lanes

    def partitions_of(self, lane: int) -> range:
        """The partition numbers of a lane."""
        return range(lane, self.partitions, self.lanes)

    def home_of(self, partition: int) -> int:
        """The partition number that decides a partition's lane. It differs from `partition` only for
        partitions that someone added to an external topic.
        """
        return partition % self.partitions

    def partition_of(self, key: bytes) -> int:
        """The partition number of a key's rows and messages."""
        return partition_of(key, self.partitions)

    def lane_of_key(self, key: str) -> int:
        """The lane that owns a key."""
        return self.lane_of(self.partition_of(key.encode()))

    def transactional_id(self, lane: int) -> str:
        """Fixed for a lane and lane count, so that an opening fences the previous owner (docs/adr/0014)."""
        return f"{self.app_id}-lane-{lane}-of-{self.lanes}"

    def changelog(self, table: str) -> str:
        """The changelog topic of a table."""
        return changelog_topic(self.app_id, table)

    def repartition(self, topic: str) -> str:
        """The topic that forwards records of an external topic to the partitions of their keys."""
        return f"{self.app_id}-{topic}-repartition"

    @property
    def operations(self) -> str:
        """The topic of operators' requests to lanes."""
        return f"{self.app_id}-operations"

    @property
    def operations_log(self) -> str:
        """The topic that logs operations: who requested what, and the result."""
        return f"{self.app_id}-operations-log"

    @property
    def announcements(self) -> str:
        """The compacted topic of schemas, the layout, and the lane counts used so far."""
        return f"{self.app_id}-announcements"


def changelog_topic(app_id: str, table: str) -> str:
    """The changelog topic of an application's table."""
    return f"{app_id}-{table}-changelog"


def dead_letter_topic(topic: str, app_id: str = "") -> str:
    """The topic of a topic's dead letters. For an external topic, pass `app_id`, because other applications
    may have dead letters of it, too.
    """
    return f"{app_id}-{topic}.dlq" if app_id else f"{topic}.dlq"


def retry_topic(topic: str, tier: int, app_id: str = "") -> str:
    """The topic with copies of a topic's messages that wait for delayed retry `tier`, from 1. `app_id` is as
    in `dead_letter_topic`.
    """
    return f"{app_id}-{topic}.retry-{tier}" if app_id else f"{topic}.retry-{tier}"
