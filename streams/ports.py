"""Ports: what a lane needs from outside. The adapters are in `streams.kafka` and `streams.host.rocksdb`, the
fakes in `streams.testing`; both pass the contract suite in `tests/contract`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes]]
#: Of topics that are read by name.
NO_IDS: Mapping[str, str] = {}
#: No offset of any partition.
NO_OFFSETS: Mapping[TP, int] = {}
#: The leader epoch of a partition that is not known.
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
    """A record of a transactional producer that the reader trusts; see `Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Damaged(NamedTuple):
    """In the place of a record that cannot be read: its bytes as they came are its value.

    It has no headers, so nothing takes it for a message; its key is there if that much could be read. Where a
    whole batch or the rest of one cannot be read, it is in the place of all of it, at the last offset.

    Attributes:
        form: what its bytes are: a record, records of a batch, or a record batch, as Kafka stores them.
        why: what is wrong with it, and where.
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
    """A cluster's id, and the ids of topics by their names: a topic that is created again has another one.
    `partitions` tells how many each topic has.
    """

    cluster: str
    topics: Mapping[str, str]
    partitions: Mapping[str, int]


class OpenTransaction(NamedTuple):
    """A transaction that is open on a partition: readers get nothing from its first record on.

    Attributes:
        first: the offset of its first record there.
        producer: the producer's id, a number that the cluster has given it.
        epoch: the producer's epoch.
        last: when it wrote to the partition last, in epoch seconds.
        transactional_id: how the producer calls itself; empty where the cluster does not tell.
    """

    first: int
    producer: int
    epoch: int
    last: float
    transactional_id: str = ""


class HeldUp(NamedTuple):
    """A reader waits at an open transaction: `first` is its first offset, `behind` counts the offsets from
    there to the end of the log.
    """

    first: int
    behind: int


class Outgoing(NamedTuple):
    """A record to be produced to a partition that the caller has chosen. A value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Sendable(Content, Protocol):
    """A record to be produced: an `Outgoing`, or a `PackedRecord`, whose bytes are made already."""

    def __iter__(self) -> Iterator[Any]:
        """Key, value and headers."""


class Note(NamedTuple):
    """Stored with a committed position: the leader epoch of the last record before it (KIP-320), and a text
    of up to 4096 bytes.
    """

    epoch: int = NO_EPOCH
    text: str = ""


class Commit(NamedTuple):
    """A committed position, as the group's coordinator has it. Who commits without a note leaves the epoch
    unknown and the text empty.
    """

    offset: int
    epoch: int = NO_EPOCH
    text: str = ""


NO_NOTES: Mapping[TP, Note] = {}


class Batch(NamedTuple):
    """Records of one partition, in order. `next_offset` is the fetch position after them: it may lie
    beyond the last record, over transaction markers and compacted holes, and `records` may be empty.
    """

    tp: TP
    records: Sequence[Record]
    next_offset: int


class Reader(Protocol):
    """A read_committed consumer of partitions chosen by hand; it belongs to no group and commits nothing."""

    async def assign(
        self,
        positions: Mapping[TP, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """Read exactly these partitions, each from its position; replaces what was assigned before.

        With the ids of all topics, nothing is read of another topic that has got one of their names, and
        nothing of a log that has lost records before a position, where brokers know ids (Kafka 3.1 or
        later). `epochs` are the leader epochs of what was read before the positions, as far as known.
        """

    def trust(self, producers: Collection[int], below: Mapping[TP, int] = NO_OFFSETS) -> None:
        """Give records of these transactional producers as `OwnRecord`, from the next fetch on: ids
        as brokers give them, which no other client has. So does what any has written `below` an offset.
        """

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        """Wait up to `timeout` seconds for records; empty when none came.

        Raises PositionLost when a position is no longer in the log, and LogCut when the log has lost records
        before it and has others in their places.
        """

    def position(self, tp: TP) -> int:
        """The offset that the next fetch continues from, moved over markers even when no record came."""

    def epoch(self, tp: TP) -> int:
        """The leader epoch of what was read last of a partition; NO_EPOCH when unknown."""

    def unknown_topics(self) -> Collection[str]:
        """Topics that a broker does not have by its last answer: deleted, made again, or not yet
        known to that broker. Nothing is read of them.
        """

    def behind(self) -> int:
        """Offsets between the positions and the ends of the logs, as the last answers of brokers had them;
        makes no request.
        """

    def silence(self) -> float:
        """For how many seconds one of the brokers that it reads from has not answered: the longest; infinite
        where one never has.
        """

    def behind_by_partition(self) -> Mapping[TP, int]:
        """The same for each partition whose end is known."""

    def held_up(self) -> Mapping[TP, HeldUp]:
        """The partitions that stand at an open transaction, as the last answers of brokers had them;
        makes no request.
        """

    async def close(self) -> None:
        """Let go of the connections."""


class Transactions(Protocol):
    """A transactional producer with a fixed id. After any exception its transaction's outcome is unknown:
    discard it and start another (docs/adr/0002).
    """

    @property
    def producer_id(self) -> int:
        """By which brokers know it, once it has started; another one after a commit with which its epochs
        were used up.
        """

    async def start(self) -> None:
        """Initialise the id: fences its previous owner and ends the transaction that one left open."""

    async def begin(self) -> None:
        """Begin a transaction. Raises Fenced when another owner has started."""

    async def send(self, batches: Mapping[TP, Sequence[Sendable]]) -> dict[TP, int]:
        """Write every record and wait until the broker has them all.

        Returns for each partition the offset after its last record. Raises Fenced, RecordRefused when
        the broker does not take a record for what it is, Refused when it takes none now, or OutcomeUnknown
        when an answer was lost.
        """

    async def send_offsets(
        self, offsets: Mapping[TP, int], group: str, notes: Mapping[TP, Note] = NO_NOTES
    ) -> None:
        """Add the group's positions to the transaction, each with its note if it has one."""

    async def commit(self) -> None:
        """Commit. Raises Fenced, or OutcomeUnknown when the answer was lost."""

    async def discard(self) -> None:
        """Let go without ending the transaction: neither abort nor commit. Never raises."""


class Cluster(Protocol):
    """Where lanes get their connections from."""

    def transactions(self, transactional_id: str) -> Transactions:
        """A producer that is not started yet."""

    async def reader(self) -> Reader:
        """A connected reader with nothing assigned."""

    async def committed(self, group: str, tps: Iterable[TP]) -> dict[TP, int]:
        """The group's committed positions; partitions without one are left out."""

    async def commits(self, group: str, tps: Iterable[TP]) -> dict[TP, Commit]:
        """The same with their notes."""

    async def leader_epochs(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The epoch of each partition's present leader. A log that has all of what was acknowledged before
        the question has it in this epoch or earlier ones.
        """

    async def epoch_ends(self, epochs: Mapping[TP, int]) -> dict[TP, int]:
        """For each partition the offset where its log goes on in a later epoch than this one, or its end.
        Records above it that were read in this epoch are gone. Left out where the leader does not know.
        """

    async def begin_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The first offset still in each log."""

    async def identity(self, topics: Iterable[str]) -> Identity:
        """The ids of the cluster and of these topics; topics that it does not have are left out."""

    async def end_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The high watermark of each log, not the last stable offset (KAFKA-10167)."""

    async def open_transactions(self, tps: Iterable[TP]) -> dict[TP, OpenTransaction]:
        """The open transaction that began first in each partition; partitions without one are left out."""


#: One change to the local store: its table, its key and its value, of which None deletes.
Write = tuple[str, bytes, bytes | None]


class TableSize(NamedTuple):
    """About how many rows a table of a store has, and about how many bytes they take. Rows that were written
    anew or removed count until the store has tidied up.
    """

    rows: int
    bytes: int


class Store(Protocol):
    """A lane's local copy of its tables. Keys sort as bytes within a table; tables appear on first use."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value, or None."""

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys."""

    def scan(
        self, table: str, *, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop, in order of key."""

    def tables(self) -> list[str]:
        """Names of the tables that exist."""

    def table_size(self, table: str) -> TableSize:
        """How large a table is, at once: nothing is counted. One that does not exist has nothing."""

    def apply(
        self, writes: Iterable[Write], positions: Mapping[TP, int], *, current_at: float | None = None
    ) -> None:
        """All changes and the changelog positions that they bring the store to, in one atomic write.

        `current_at` says that with them the store has all that the changelogs had at that time; a write
        that does not prove it leaves it out.
        """

    def position(self, tp: TP) -> int:
        """The changelog offset that the store has been brought to; 0 when it has none."""

    def drop(self, table: str) -> None:
        """Remove a table with all in it; nothing happens when there is none."""

    def wipe(self) -> None:
        """Remove everything, positions too."""

    def current_at(self) -> float | None:
        """When the store is known to have had all that its changelogs had, in seconds since the epoch, kept
        across restarts; None when never.
        """

    def size(self) -> int:
        """Bytes that it takes on the disk, or in memory, about."""

    def close(self) -> None:
        """Release files and locks. A closed store can be opened again by the next owner."""


class Stores(Protocol):
    """Opens the store of a lane; the same lane's store is open once at a time."""

    def open(self, lane: int) -> Store:
        """Open, creating it when missing. Raises StoreBusy, or StoreBroken when it cannot be read."""

    def destroy(self, lane: int) -> None:
        """Remove a store with all that it has, a broken one too."""


class Clock(Protocol):
    """Wall time, so that tests can move it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Wait; a test's clock returns when it has been moved on."""


class Faults(Protocol):
    """Labelled points of the commit protocol, at which a test makes something happen."""

    async def reach(self, point: str) -> None:
        """Called by the lane at each point; does nothing in production."""


class Blob(NamedTuple):
    """An object as the store lists it. `size` in bytes; `modified` in seconds since the epoch, whole ones."""

    name: str
    size: int
    modified: float


class Blobs(Protocol):
    """Objects of one bucket, by name. Every method raises BlobsUnavailable, which is transient, when the
    store does not answer in time, answers that it cannot, or refuses for a reason that an operator can mend.
    """

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        """Write an object; one that was there by this name is replaced at once, never half.

        It is replaced even by the same bytes: then it counts as new, and a sweeper leaves it alone.
        """

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        """Its bytes; of more than `at_most` only the first so many.

        Raises BlobMissing, and BlobArchived where it has to be restored first.
        """

    async def head(self, name: str) -> Blob | None:
        """The store's entry for an object; None when there is none."""

    def scan(self, prefix: str, *, older_than: float | None = None) -> AsyncIterator[Blob]:
        """Objects whose names begin with the prefix, in the order of their names as UTF-8; only those
        modified before `older_than`, in seconds since the epoch, when it is given.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; names that the store does not have are no error."""

    async def close(self) -> None:
        """Let go of threads and connections; what is under way may end."""


@dataclass(frozen=True, slots=True)
class Ports:
    """How a lane meets the outside: the cluster, the stores of its machine, time, and faults of tests."""

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
