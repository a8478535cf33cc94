"""What a reader asks a broker, and what its answers say: fetches within a session (KIP-227).

A lane reads dozens of partitions, few of which have anything new. Within a session a broker remembers what is
fetched, and from where: a request names what has changed since the last one, an answer what there is to tell.

The request names topics by their ids (KIP-516) where the broker can do that. By name a reader goes on in a
topic that was deleted and made again, at an offset of the former one, and skips what is before it. By id the
first answer is an error.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streams.kafka.wire import CLASSIC, FLEXIBLE, ResponseReader, VersionedRequest, WireFormat
from streams.ports import NO_OFFSETS, TP

_FETCH = 1
#: The version that names topics by their ids, which Kafka 3.1 brought, and one that names them, of Kafka 2.3.
BY_ID, BY_NAME = 13, 11
#: The errors of a partition that say that the broker does not have this topic, by its name or its id.
UNKNOWN = 3, 100, 103
#: The error of a partition whose log does not have the offset.
OUT_OF_RANGE = 1

_CONSUMER, _COMMITTED, _UNKNOWN = -1, 1, -1
#: What a request says of its epoch: it begins a session; it is the one after the first, and after the last.
_NEW, _NEXT, _LAST = 0, 1, 2**31 - 1
_ASKED, _NUMBER, _ID_SIZE = struct.Struct(">iiiibii"), struct.Struct(">i"), 16
_WANTED_BY_ID, _WANTED_BY_NAME = struct.Struct(">iiqiqi"), struct.Struct(">iiqqi")
_HEAD, _FOUND, _ABORTED, _REPLICA = (
    struct.Struct(">hi"), struct.Struct(">ihqqq"), struct.Struct(">qq"), struct.Struct(">i"),
)  # fmt: skip


#: The number of a tagged field, and what it begins with: an epoch and an offset.
_DIVERGES, _EPOCH_END = 0, struct.Struct(">iq")


class Bounds(NamedTuple):
    """Of an answer: how long a broker may hold it back, in ms, and its bytes, of all and of one partition."""

    wait: int
    size: int
    partition_size: int


class Found(NamedTuple):
    """What an answer says of a partition.

    Attributes:
        topic: its name, or its id.
        error: a code; 0: none.
        end: where its log ends.
        stable: where what is decided ends.
        aborted: producers with the first offsets of transactions that were aborted.
        data: record batches; the last one may be cut off.
        diverges: a leader epoch, and where it ends in this log, which has not what was read before the
            offset; None: it has (KIP-320).
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
    """An answer: an error of all of it, the session's id, and the partitions of which there is news."""

    error: int
    session_id: int
    found: list[Found]


class FetchSession:
    """The session of one reader at one broker."""

    def __init__(self) -> None:
        self.incremental = 0
        #: From where each partition was requested last.
        self._known: dict[TP, int] = {}
        self.reset()

    def reset(self) -> None:
        """The broker's session is gone or unknown: the next request names every partition."""
        self.id, self._epoch = 0, _NEW

    def next(self, wanted: dict[TP, int]) -> tuple[int, dict[TP, int], list[TP]]:
        """The epoch of the next request, the offsets that it has to name, and what is to be forgotten. From
        here on the broker is taken to know that, until `reset`.
        """
        epoch, known, self._known = self._epoch, self._known, wanted
        self._epoch = _NEXT if epoch in (_NEW, _LAST) else epoch + 1
        if epoch == _NEW:
            return epoch, wanted, []
        self.incremental += 1
        changed = {tp: offset for tp, offset in wanted.items() if known.get(tp) != offset}
        return epoch, changed, [tp for tp in known if tp not in wanted]

    def answered(self, session_id: int, error: int) -> None:
        """The broker's answer. Without an id it keeps no session; an error means that it has lost it."""
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
    """The next request of a session, for these partitions from these offsets; by the ids of all topics, or by
    their names. By ids the brokers compare the leader epochs of what was read before. The answer is an
    `Answer`.
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
