"""Encodes fetch requests and decodes their answers, within a fetch session (KIP-227).

A lane reads dozens of partitions, few of which have new records. Within a session the broker remembers the
partitions and offsets, so a request names only what changed, and an answer only partitions with news.

The request names topics by id (KIP-516) if the broker supports that. Suppose a topic is deleted and created
again: a reader that names it would continue at an offset of the old topic and skip the new topic's first
records. A request by id gets an error instead.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streams.kafka.wire import CLASSIC, FLEXIBLE, ResponseReader, VersionedRequest, WireFormat
from streams.ports import NO_OFFSETS, TP

_FETCH = 1
#: Versions of the fetch request: 13 (Kafka 3.1) has topic ids, 11 (Kafka 2.3) has topic names.
BY_ID, BY_NAME = 13, 11
#: Partition errors that mean that the broker does not have the topic, by its name or its id.
UNKNOWN = 3, 100, 103
#: Partition error: the log does not have the requested offset.
OUT_OF_RANGE = 1

_CONSUMER, _COMMITTED, _UNKNOWN = -1, 1, -1
#: Session epochs: of a request that begins a session, of the next request, and the last before they wrap.
_NEW, _NEXT, _LAST = 0, 1, 2**31 - 1
_ASKED, _NUMBER, _ID_SIZE = struct.Struct(">iiiibii"), struct.Struct(">i"), 16
_WANTED_BY_ID, _WANTED_BY_NAME = struct.Struct(">iiqiqi"), struct.Struct(">iiqqi")
_HEAD, _FOUND, _ABORTED, _REPLICA = (
    struct.Struct(">hi"), struct.Struct(">ihqqq"), struct.Struct(">qq"), struct.Struct(">i"),
)  # fmt: skip


#: Tag number of the diverging epoch, and its format: leader epoch and end offset.
_DIVERGES, _EPOCH_END = 0, struct.Struct(">iq")


class Bounds(NamedTuple):
    """Limits of an answer: how long a broker may wait, in ms, and bytes in total and for one partition."""

    wait: int
    size: int
    partition_size: int


class Found(NamedTuple):
    """One partition in an answer.

    Attributes:
        topic: name or id of the topic.
        error: error code; 0 means no error.
        end: end offset of the log.
        stable: last stable offset: the start of the first open transaction, or the end.
        aborted: producer id and first offset of each aborted transaction.
        data: record batches; the last one may be incomplete.
        diverges: set if this log does not contain what the reader read before the offset (KIP-320): a leader
            epoch, and the offset where it ends in this log.
    """

    topic: str | bytes
    partition: int
    error: int
    end: int
    stable: int
    aborted: list[tuple[int, int]]
    data: bytes
    diverges: tuple[int, int] | None = None


class Answer(NamedTuple):
    """An answer: the error code of the whole fetch, the session id, and the partitions with news."""

    error: int
    session_id: int
    found: list[Found]


class FetchSession:
    """The session of one reader at one broker."""

    def __init__(self) -> None:
        self.incremental = 0
        #: The offset that was last requested for each partition.
        self._known: dict[TP, int] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the session, so that the next request names every partition."""
        self.id, self._epoch = 0, _NEW

    def next(self, wanted: dict[TP, int]) -> tuple[int, dict[TP, int], list[TP]]:
        """Epoch of the next request, the offsets that it must name, and the partitions that the broker should
        forget. Assumes from now on that the broker knows them, until `reset`.
        """
        epoch, known, self._known = self._epoch, self._known, wanted
        self._epoch = _NEXT if epoch in (_NEW, _LAST) else epoch + 1
        if epoch == _NEW:
            return epoch, wanted, []
        self.incremental += 1
        changed = {tp: offset for tp, offset in wanted.items() if known.get(tp) != offset}
        return epoch, changed, [tp for tp in known if tp not in wanted]

    def answered(self, session_id: int, error: int) -> None:
        """Record an answer. Without an id, the broker keeps no session; an error means that it lost it."""
        if error or not session_id:
            self.reset()
        else:
            self.id = session_id


def fetch(
    session: FetchSession,
    wanted: dict[TP, int],
    bounds: Bounds,
    topic_ids: Mapping[str, bytes] | None,
    epochs: Mapping[TP, int] = NO_OFFSETS,
) -> VersionedRequest:
    """The next request of a session, for these partitions from these offsets. `topic_ids` has the ids of all
    topics, or is None to request them by name. Only a request by id carries `epochs`, the leader epochs of
    what was read before, for brokers to compare. The answer is an `Answer`.
    """
    form, version = (CLASSIC, BY_NAME) if topic_ids is None else (FLEXIBLE, BY_ID)
    session_id = session.id
    epoch, named, forgotten = session.next(wanted)
    wait, size, most = bounds
    body = bytearray(_ASKED.pack(_CONSUMER, wait, 1, size, _COMMITTED, session_id, epoch))
    topics = _by_topic(named)
    body += form.count(len(topics))
    for topic, tps in topics.items():
        body += _name(form, topic, topic_ids) + form.count(len(tps))
        for tp in tps:
            if topic_ids is None:
                body += _WANTED_BY_NAME.pack(tp.partition, _UNKNOWN, named[tp], _UNKNOWN, most)
            else:
                epoch = epochs.get(tp, _UNKNOWN)
                body += _WANTED_BY_ID.pack(tp.partition, _UNKNOWN, named[tp], epoch, _UNKNOWN, most)
                body += form.tags
        body += form.tags
    topics = _by_topic(forgotten)
    body += form.count(len(topics))
    for topic, tps in topics.items():
        body += _name(form, topic, topic_ids) + form.count(len(tps))
        body += b"".join(_NUMBER.pack(tp.partition) for tp in tps) + form.tags
    body += form.string("") + form.tags  # the rack
    return VersionedRequest((_FETCH, version), form, [body], _answer)


def _name(form: WireFormat, topic: str, topic_ids: Mapping[str, bytes] | None) -> bytes:
    return form.string(topic) if topic_ids is None else topic_ids[topic]


def _by_topic(tps: Iterable[TP]) -> dict[str, list[TP]]:
    found: defaultdict[str, list[TP]] = defaultdict(list)
    for tp in tps:
        found[tp.topic].append(tp)
    return found


def _diverges(tags: Iterable[tuple[int, bytes]]) -> tuple[int, int] | None:
    for number, data in tags:
        if number == _DIVERGES:
            epoch, end = _EPOCH_END.unpack_from(data)
            return (epoch, end) if end >= 0 else None
    return None


def _answer(answer: ResponseReader) -> Answer:
    answer.throttle()
    error, session_id = answer.take(_HEAD)
    found = []
    for _ in range(answer.count()):
        topic = answer.bytes(_ID_SIZE) if answer.is_flexible else answer.string()
        for _ in range(answer.count()):
            partition, code, end, stable, _ = answer.take(_FOUND)
            aborted = []
            for _ in range(answer.count()):
                aborted.append(answer.take(_ABORTED))
                answer.tags()
            answer.take(_REPLICA)
            data = answer.bytes(max(0, answer.count()))
            diverges = _diverges(answer.tags())
            found.append(Found(topic, partition, code, end, stable, aborted, data, diverges))
        answer.tags()
    return Answer(error, session_id, found)
