"""Encodes the requests of a transaction and decodes their answers."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from streams.kafka.wire import (
    CLASSIC,
    FLEXIBLE,
    ResponseReader,
    VersionedRequest,
    WireFormat,
)
from streams.ports import NO_NOTES, TP, Note

T = TypeVar("T")

_PRODUCE, _API_VERSIONS, _INIT_PRODUCER, _ADD_PARTITIONS, _ADD_OFFSETS, _END, _COMMIT_OFFSETS = (
    0, 18, 22, 24, 25, 26, 28,
)  # fmt: skip
#: From this level of the feature on, transactions use the protocol of KIP-890, part 2.
_FEATURE, _LEVEL_OF_V2 = "transaction.version", 2
_FINALIZED = 2
_ALL_REPLICAS = -1
_NO_GENERATION = -1

_CODE, _PARTITION_CODE = struct.Struct(">h"), struct.Struct(">ih")
_PARTITION, _IDENTITY, _END_OF = struct.Struct(">i"), struct.Struct(">qh"), struct.Struct(">qh?")
_ACKS, _WRITTEN, _INDEX = struct.Struct(">hi"), struct.Struct(">ihqqq"), struct.Struct(">i")
_POSITION = struct.Struct(">iqi")
_VERSIONS, _LEVELS = struct.Struct(">hhh"), struct.Struct(">hh")


class TransactionProtocol(NamedTuple):
    """Protocol and request versions of a transaction.

    Attributes:
        enrols: whether a write adds its partition or group to the transaction. Otherwise, the producer must
            first send each one to the coordinator.
        form: wire format of the produce, offset commit and end requests.
        produce, offsets, end: versions of these requests.
    """

    enrols: bool
    form: WireFormat
    produce: int
    offsets: int
    end: int

    @property
    def codes(self) -> Iterable[int]:
        """Error codes in the answer: always empty."""
        return ()


#: Every cluster supports this. One request of each kind names all partitions.
V1 = TransactionProtocol(enrols=False, form=CLASSIC, produce=8, offsets=2, end=0)
#: KIP-890, part 2: each end raises the epoch, so that a late request cannot get into a later transaction.
V2 = TransactionProtocol(enrols=True, form=FLEXIBLE, produce=12, offsets=5, end=5)


class Owner(NamedTuple):
    """The owner of a transaction, as the coordinator knows it."""

    transactional_id: str
    producer_id: int
    epoch: int


class TransactionAnswer(NamedTuple):
    """The answer to a request for the whole transaction: its error code, and the producer id and epoch from
    now on. The producer id is negative if the answer does not contain one.
    """

    code: int
    producer_id: int = -1
    epoch: int = -1

    @property
    def codes(self) -> Iterable[int]:
        """All error codes in the answer; 0 means no error."""
        return (self.code,)


class Codes(dict[TP, int]):
    """The answer to a request for partitions: the error code of each."""

    @property
    def codes(self) -> Iterable[int]:
        """All error codes in the answer; 0 means no error."""
        return self.values()


class WrittenBatch(NamedTuple):
    """The result of a written batch: its first offset, or an error code and the broker's message."""

    code: int
    offset: int
    message: str


def protocol_of() -> VersionedRequest:
    """Asks a broker for the transaction protocol of the cluster. The answer is a `TransactionProtocol`."""
    parts = (FLEXIBLE.string("steadfaust"), FLEXIBLE.string("1"), FLEXIBLE.tags)
    return VersionedRequest((_API_VERSIONS, 3), FLEXIBLE, parts, _protocol, old_header=True)


def _protocol(answer: ResponseReader) -> TransactionProtocol:
    (code,) = answer.take(_CODE)
    highest = {}
    for _ in range(answer.count()):
        key, _, highest[key] = answer.take(_VERSIONS)
        answer.tags()
    answer.throttle()
    tags = dict(answer.tags())
    wanted = {_PRODUCE: V2.produce, _COMMIT_OFFSETS: V2.offsets, _END: V2.end}
    known = all(highest.get(key, -1) >= version for key, version in wanted.items())
    level = _features(tags.get(_FINALIZED, b"\1")).get(_FEATURE, 0)
    return V2 if not code and known and level >= _LEVEL_OF_V2 else V1


def _features(data: bytes) -> dict[str, int]:
    """The cluster's finalized feature levels."""
    answer = ResponseReader(data, FLEXIBLE)
    found = {}
    for _ in range(answer.count()):
        name = answer.string()
        found[name], _ = answer.take(_LEVELS)
        answer.tags()
    return found


def init_producer(transactional_id: str, timeout: float) -> VersionedRequest:
    """Asks the coordinator for the epoch of a new owner, which fences the previous one. The coordinator
    aborts a transaction that is open for `timeout` seconds. The answer is a `TransactionAnswer`.
    """
    parts = (CLASSIC.string(transactional_id), _PARTITION.pack(int(timeout * 1000)))
    return VersionedRequest((_INIT_PRODUCER, 0), CLASSIC, parts, _renewed)


def add_partitions(owner: Owner, tps: Iterable[TP]) -> VersionedRequest:
    """Adds partitions to the transaction, before they are written to. The answer is `Codes`."""
    topics = _by_topic((tp, tp.partition) for tp in tps)
    parts = [CLASSIC.string(owner.transactional_id), _IDENTITY.pack(*owner[1:]), CLASSIC.count(len(topics))]
    for topic, partitions in topics.items():
        parts += CLASSIC.string(topic), struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return VersionedRequest((_ADD_PARTITIONS, 0), CLASSIC, parts, _codes)


def add_offsets(owner: Owner, group: str) -> VersionedRequest:
    """Adds a group to the transaction, before its offsets are committed. The answer is a
    `TransactionAnswer`.
    """
    parts = (CLASSIC.string(owner.transactional_id), _IDENTITY.pack(*owner[1:]), CLASSIC.string(group))
    return VersionedRequest((_ADD_OFFSETS, 0), CLASSIC, parts, _outcome)


def produce(
    protocol: TransactionProtocol, owner: Owner, batches: Mapping[TP, bytearray], timeout: float
) -> VersionedRequest:
    """Writes one batch to each partition; one broker leads them all. It waits up to `timeout` seconds for the
    replicas. The answer is a `WrittenBatch` for each partition.
    """
    form = protocol.form
    topics = _by_topic((tp, (tp.partition, batch)) for tp, batch in batches.items())
    head = (form.string(owner.transactional_id), _ACKS.pack(_ALL_REPLICAS, int(timeout * 1000)))
    parts: list[bytes | bytearray] = [*head, form.count(len(topics))]
    for topic, some in topics.items():
        parts += form.string(topic), form.count(len(some))
        for partition, batch in some:
            parts += _PARTITION.pack(partition), form.count(len(batch)), batch, form.tags
        parts.append(form.tags)
    parts.append(form.tags)
    return VersionedRequest((_PRODUCE, protocol.produce), form, parts, _produced)


def _produced(answer: ResponseReader) -> dict[TP, WrittenBatch]:
    found = {}
    for _ in range(answer.count()):
        topic = answer.string()
        for _ in range(answer.count()):
            partition, code, offset, _, _ = answer.take(_WRITTEN)
            why = []
            for _ in range(answer.count()):
                answer.take(_INDEX)
                why.append(answer.string())
                answer.tags()
            why.insert(0, answer.string())
            answer.tags()
            found[TP(topic, partition)] = WrittenBatch(code, offset, "; ".join(filter(None, why)))
        answer.tags()
    answer.throttle()
    return found


def commit_offsets(
    protocol: TransactionProtocol,
    owner: Owner,
    group: str,
    offsets: Mapping[TP, int],
    notes: Mapping[TP, Note] = NO_NOTES,
) -> VersionedRequest:
    """Commits a group's offsets as part of the transaction. The answer is `Codes`."""
    form = protocol.form
    unknown = Note()
    topics = _by_topic(
        (tp, (tp.partition, offset, *notes.get(tp, unknown))) for tp, offset in offsets.items()
    )
    parts = [form.string(owner.transactional_id), form.string(group), _IDENTITY.pack(*owner[1:])]
    if form.flexible:  # no group member and no instance id, because the transactional id fences
        parts += _PARTITION.pack(_NO_GENERATION), form.string(""), b"\0"
    parts.append(form.count(len(topics)))
    for topic, positions in topics.items():
        parts += form.string(topic), form.count(len(positions))
        for partition, offset, epoch, text in positions:
            parts += _POSITION.pack(partition, offset, epoch), form.string(text), form.tags
        parts.append(form.tags)
    parts.append(form.tags)
    return VersionedRequest((_COMMIT_OFFSETS, protocol.offsets), form, parts, _codes)


def end(protocol: TransactionProtocol, owner: Owner) -> VersionedRequest:
    """Commits. The answer is a `TransactionAnswer`, with the next epoch if the protocol raises it."""
    form = protocol.form
    parts = (form.string(owner.transactional_id), _END_OF.pack(*owner[1:], True), form.tags)
    return VersionedRequest((_END, protocol.end), form, parts, _renewed if protocol.enrols else _outcome)


def _codes(answer: ResponseReader) -> Codes:
    answer.throttle()
    found = Codes()
    for _ in range(answer.count()):
        topic = answer.string()
        for _ in range(answer.count()):
            partition, found[TP(topic, partition)] = answer.take(_PARTITION_CODE)
            answer.tags()
        answer.tags()
    return found


def _outcome(answer: ResponseReader) -> TransactionAnswer:
    answer.throttle()
    return TransactionAnswer(*answer.take(_CODE))


def _renewed(answer: ResponseReader) -> TransactionAnswer:
    answer.throttle()
    return TransactionAnswer(*answer.take(_CODE), *answer.take(_IDENTITY))


def _by_topic(each: Iterable[tuple[TP, T]]) -> Mapping[str, Sequence[T]]:
    found: defaultdict[str, list[T]] = defaultdict(list)
    for tp, what in each:
        found[tp.topic].append(what)
    return found
