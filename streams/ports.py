"""Ports: what a lane needs from outside. The adapters are in `streams.kafka` and `streams.host.rocksdb`, the
fakes in `streams.testing`; both pass the contract suite in `tests/contract`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes]]
#: No topic ids: topics are identified by name.
NO_IDS: Mapping[str, str] = {}
#: No offsets.
NO_OFFSETS: Mapping[TP, int] = {}
#: An unknown leader epoch.
NO_EPOCH = -1


#: The topic setting that says whose clock stamps records: retention deletes by these stamps.
STAMPED = "message.timestamp.type"
#: How old a client's stamp may be; brokers have it since Kafka 3.6.
OLDEST = "message.timestamp.before.max.ms"


class TP(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Content(Protocol):
    """The content of a record."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Record(Content, Protocol):
    """A consumed record, as aiokafka's ConsumerRecord has it. `timestamp` is in milliseconds."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...


class OwnRecord(NamedTuple):
    """A record of a transactional producer that the reader trusts (see `Reader.trust`)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Damaged(NamedTuple):
    """Stands for a record that cannot be read. Its value is the raw bytes.

    It has no headers, so it is never taken for a message, and a key only if that could be read. If a whole
    batch or the rest of a batch cannot be read, one Damaged at the last offset stands for all of its records.

    Attributes:
        form: what the bytes are: a record, records of a batch, or a record batch, in Kafka's format.
        why: what is wrong, and where.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: Headers
    form: str
    why: str


class Identity(NamedTuple):
    """A cluster's id, and topic ids and numbers of partitions by topic name. A topic that was deleted and
    created again has a new id.
    """

    cluster: str
    topics: Mapping[str, str]
    partitions: Mapping[str, int]


class OpenTransaction(NamedTuple):
    """An open transaction in a partition. It blocks read_committed readers at its first record.

    Attributes:
        first: offset of its first record in the partition.
        producer: producer id, a number that the cluster assigned.
        epoch: the producer's epoch.
        last: time of its last write to the partition, in epoch seconds.
        transactional_id: empty if the cluster does not report it.
    """

    first: int
    producer: int
    epoch: int
    last: float
    transactional_id: str = ""


class HeldUp(NamedTuple):
    """A partition blocked by an open transaction: `first` is the first offset of the transaction, `behind`
    the number of offsets from there to the end of the log.
    """

    first: int
    behind: int


class Outgoing(NamedTuple):
    """A record to write to a partition that the caller has chosen. A value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Sendable(Content, Protocol):
    """A record to write: an `Outgoing`, or a `PackedRecord`, which is encoded already."""

    def __iter__(self) -> Iterator[Any]:
        """Key, value and headers."""


class Note(NamedTuple):
    """Stored with a committed offset: the leader epoch of the last record before it (KIP-320), and a text of
    up to 4096 bytes.
    """

    epoch: int = NO_EPOCH
    text: str = ""


class Commit(NamedTuple):
    """A committed offset of a group. Without a note, the epoch is unknown and the text empty."""

    offset: int
    epoch: int = NO_EPOCH
    text: str = ""


NO_NOTES: Mapping[TP, Note] = {}


class Batch(NamedTuple):
    """Records of one partition, in order. `next_offset` is the fetch position after them. It may be beyond
    the last record, because of transaction markers and compaction, and `records` may be empty.
    """

    tp: TP
    records: Sequence[Record]
    next_offset: int


class Reader(Protocol):
    """A read_committed consumer of explicitly assigned partitions, without a group and without commits."""

    async def assign(
        self,
        positions: Mapping[TP, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """Read exactly these partitions, each from its position. This replaces the previous assignment.

        If `topic_ids` has the ids of all topics, nothing is read from another topic that has taken one of the
        names, or from a log that has lost records before a position. This needs Kafka 3.1 or later. `epochs`
        are the leader epochs of the records before the positions, as far as they are known.
        """

    def trust(self, producers: Collection[int], below: Mapping[TP, int] = NO_OFFSETS) -> None:
        """From the next fetch on, return records of these producer ids as `OwnRecord`, as well as all records
        `below` an offset. Brokers assign producer ids, so no other client has one of them.
        """

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        """Wait up to `timeout` seconds for records. The list is empty if none arrive.

        Raises PositionLost if a position is no longer in the log, and LogCut if the log has lost records
        before it and has others at their offsets.
        """

    def position(self, tp: TP) -> int:
        """The offset at which the next fetch continues. It also moves over transaction markers."""

    def epoch(self, tp: TP) -> int:
        """The leader epoch of the last record read from a partition, or NO_EPOCH."""

    def unknown_topics(self) -> Collection[str]:
        """Topics that a broker did not have at its last answer, because they were deleted, created again, or
        are not yet known to that broker. They are not read.
        """

    def behind(self) -> int:
        """The lag: the number of offsets between positions and ends of logs, from the brokers' last answers.
        Makes no request.
        """

    def silence(self) -> float:
        """Seconds since the last answer of the broker that has been silent for longest. Infinite if one has
        never answered.
        """

    def behind_by_partition(self) -> Mapping[TP, int]:
        """The lag of each partition whose end is known."""

    def held_up(self) -> Mapping[TP, HeldUp]:
        """Partitions blocked by an open transaction, from the brokers' last answers. Makes no request."""

    async def close(self) -> None:
        """Close the connections."""


class Transactions(Protocol):
    """A transactional producer with a fixed id. After any exception, discard it and start another one
    (docs/adr/0002). Every method that asks brokers raises TransactionFailed or Fenced.
    """

    @property
    def producer_id(self) -> int:
        """The producer id that brokers have assigned. It changes after a commit that used up its epochs."""

    async def start(self) -> None:
        """Initialise the transactional id. Fences its previous owner and ends a transaction left open."""

    async def begin(self) -> None:
        """Begin a transaction. Raises Fenced if another owner has started."""

    async def send(self, batches: Mapping[TP, Sequence[Sendable]]) -> dict[TP, int]:
        """Write all records, and wait until the brokers have them.

        Returns the offset after the last record of each partition. Raises Fenced; RecordRefused if a broker
        refuses a record because of its content or size; Refused if it refuses all records at present;
        OutcomeUnknown if an answer was lost.
        """

    async def send_offsets(
        self, offsets: Mapping[TP, int], group: str, notes: Mapping[TP, Note] = NO_NOTES
    ) -> None:
        """Add offsets of a group to the transaction, each with its note, if there is one."""

    async def commit(self) -> None:
        """Commit. Raises Fenced, Refused, or OutcomeUnknown if the answer was lost."""

    async def discard(self) -> None:
        """Let go of the transaction without ending it, by neither abort nor commit. Never raises."""


class Cluster(Protocol):
    """The Kafka cluster. Methods that ask brokers raise ClusterUnavailable if these do not answer in time."""

    def transactions(self, transactional_id: str) -> Transactions:
        """Create a producer, which is not started yet."""

    async def reader(self) -> Reader:
        """Create a connected reader without an assignment."""

    async def committed(self, group: str, tps: Iterable[TP]) -> dict[TP, int]:
        """Committed offsets of a group. Partitions without one are left out."""

    async def commits(self, group: str, tps: Iterable[TP]) -> dict[TP, Commit]:
        """Committed offsets of a group with their notes. Partitions without one are left out."""

    async def leader_epochs(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The epoch of each partition's present leader. Records acknowledged before the call are in this
        epoch or earlier ones, unless the log has lost them.
        """

    async def epoch_ends(self, epochs: Mapping[TP, int]) -> dict[TP, int]:
        """For each partition the offset at which the given epoch ends in its log. Records read in that epoch
        at higher offsets are lost. Partitions whose leader does not know the epoch are left out.
        """

    async def begin_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The first offset of each log."""

    async def offsets_since(self, tps: Iterable[TP], since_ms: int) -> dict[TP, int]:
        """For each partition the offset of its first record since a time, in epoch milliseconds. Partitions
        without one are left out.
        """

    async def identity(self, topics: Iterable[str]) -> Identity:
        """The ids of the cluster and of topics. Topics that do not exist are left out."""

    async def end_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The high watermark of each log, which is not its last stable offset (KAFKA-10167)."""

    async def open_transactions(self, tps: Iterable[TP]) -> dict[TP, OpenTransaction]:
        """The oldest open transaction of each partition. Partitions without one are left out."""


#: A change to the local store: table, key and value. A value of None deletes the key.
Write = tuple[str, bytes, bytes | None]


class TableSize(NamedTuple):
    """Approximate size of a table in rows and bytes. Overwritten and deleted rows count until the store
    compacts its files.
    """

    rows: int
    bytes: int


class Store(Protocol):
    """A lane's local copy of its tables. Keys of a table sort as bytes. A table is created by its first use.

    Every method raises StoreFailed if the store cannot be used.
    """

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, or None, in the order of the keys."""

    def scan(
        self, table: str, *, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop, in key order."""

    def tables(self) -> list[str]:
        """Names of the existing tables."""

    def table_size(self, table: str) -> TableSize:
        """The approximate size of a table, without counting. A table that does not exist is empty."""

    def apply(
        self, writes: Iterable[Write], positions: Mapping[TP, int], *, current_at: float | None = None
    ) -> None:
        """Write all changes, and the changelog positions after them, atomically.

        Pass `current_at`, in epoch seconds, only if the store then has everything that the changelogs had at
        that time.
        """

    def position(self, tp: TP) -> int:
        """The changelog offset up to which the store is written, or 0."""

    def drop(self, table: str) -> None:
        """Delete a table, if it exists."""

    def wipe(self) -> None:
        """Delete everything, including the positions."""

    def current_at(self) -> float | None:
        """The last `current_at` that was written, in epoch seconds, or None. It survives restarts."""

    def size(self) -> int:
        """Approximate size in bytes, on disk or in memory."""

    def close(self) -> None:
        """Release files and locks, so that the next owner can open the store."""


class Stores(Protocol):
    """Opens the stores of lanes. A lane's store can be open only once at a time."""

    def open(self, lane: int) -> Store:
        """Open a store, or create it. Raises StoreBusy, StoreBroken or StoreUnavailable."""

    def destroy(self, lane: int) -> None:
        """Delete a store with all of its files, even if it is broken."""


class Clock(Protocol):
    """Wall time. Tests replace it to control time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds. A test's clock returns when the test has moved it."""


class Faults(Protocol):
    """Fault points of the commit protocol, at which a test can kill, freeze or fail."""

    async def reach(self, point: str) -> None:
        """Called by the lane at each fault point. Does nothing in production."""


class Blob(NamedTuple):
    """The store's entry for an object: `size` in bytes, `modified` in whole epoch seconds."""

    name: str
    size: int
    modified: float


class Blobs(Protocol):
    """Objects of one bucket, by name. Every method raises BlobsUnavailable, a transient error, if the store
    does not answer in time, reports a failure, or refuses for a reason that an operator can remove.
    """

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        """Write an object. An object with the same name is replaced atomically.

        Writing the same bytes again renews `modified`, so that a cleanup does not delete the object.
        """

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        """Read an object, or only its first `at_most` bytes.

        Raises BlobMissing, or BlobArchived if it must be restored first.
        """

    async def head(self, name: str) -> Blob | None:
        """The store's entry for an object, or None."""

    def scan(self, prefix: str, *, older_than: float | None = None) -> AsyncIterator[Blob]:
        """List objects whose names begin with a prefix, in the order of their names as UTF-8. With
        `older_than`, in epoch seconds, only those modified before.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Names that do not exist are ignored."""

    async def close(self) -> None:
        """Close threads and connections, after requests in progress have ended."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside that a lane uses: cluster, stores of the machine, clock, and fault points."""

    cluster: Cluster
    stores: Stores
    clock: Clock
    faults: Faults


@dataclass(frozen=True)
class TopicSpec:
    """A topic as the application needs it. `config` holds broker settings by their Kafka names; those in
    `exact` may not be higher either. Of a topic from `outside` there may be more partitions: what is in them
    goes on to the partitions of its keys. `made` holds settings that it is created with, and may be without.
    """

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)
    exact: frozenset[str] = frozenset()
    outside: bool = False
    made: Mapping[str, str] = field(default_factory=dict)
