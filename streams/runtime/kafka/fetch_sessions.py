"""Fetch sessions (KIP-227) for aiokafka's consumer, which names all its partitions in each fetch.

A lane reads dozens of partitions, few of which have anything new. Within a session a broker remembers what is
fetched, and from where: a request names what has changed since the last one, an answer what there is to tell.

The request names topics by their ids (KIP-516), which aiokafka's does not. By name a reader goes on in a
topic that was deleted and made again, at an offset of the former one, and skips what is before it. By id the
first answer is an error.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import inf
from time import monotonic
from typing import Any

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest, FetchRequestStruct
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from aiokafka.structs import TopicPartition

from streams.runtime.kafka.topic_ids import Uuid

#: The version that names topics by their ids; Kafka 3.1 brought it.
BY_ID = 13
#: The errors of a partition that say that the broker does not have this topic, by its name or its id.
UNKNOWN = UNKNOWN_NAME, UNKNOWN_ID, INCONSISTENT_ID = 3, 100, 103

_ABORTED = (("producer_id", Int64), ("first_offset", Int64), ("tags", TaggedFields))
_ANSWERED = (
    ("partition", Int32),
    ("error_code", Int16),
    ("highwater_offset", Int64),
    ("last_stable_offset", Int64),
    ("log_start_offset", Int64),
    ("aborted_transactions", CompactArray(*_ABORTED)),
    ("preferred_read_replica", Int32),
    ("message_set", CompactBytes),
    ("tags", TaggedFields),
)
_WANTED = (
    ("partition", Int32),
    ("current_leader_epoch", Int32),
    ("fetch_offset", Int64),
    ("last_fetched_epoch", Int32),
    ("log_start_offset", Int64),
    ("max_bytes", Int32),
    ("tags", TaggedFields),
)


class FetchResponse_v13(Response):  # noqa: N801 - named as aiokafka names them
    """An answer whose topics have ids."""

    API_KEY = 1
    API_VERSION = BY_ID
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid), ("partitions", CompactArray(*_ANSWERED)), ("tags", TaggedFields)
            ),
        ),
        ("tags", TaggedFields),
    )


class FetchRequest_v13(RequestStruct):  # noqa: N801 - named as aiokafka names them
    """A request that names topics by their ids."""

    FLEXIBLE_VERSION = True
    API_KEY = 1
    API_VERSION = BY_ID
    RESPONSE_TYPE = FetchResponse_v13
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_time", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("partitions", CompactArray(*_WANTED)), ("tags", TaggedFields)),
        ),
        (
            "forgotten_topics_data",
            CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)),
        ),
        ("rack_id", CompactString("utf-8")),
        ("tags", TaggedFields),
    )


def name_topics(answer: Any, names: Mapping[bytes, str]) -> None:
    """Give the topics of an answer their names, and its partitions the form of the versions before. What was
    not requested is left out.
    """
    answer.topics = [
        (names[topic_id], [_as_before(partition) for partition in partitions])
        for topic_id, partitions, _ in answer.topics
        if topic_id in names
    ]


def _as_before(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    number, error, end, stable, start, aborted, replica, records, _ = partition
    error = UNKNOWN_NAME if error in UNKNOWN else error
    pairs = [(producer, first) for producer, first, _ in aborted or ()]
    return (number, error, end, stable, start, pairs, replica, records or b"")


#: The first version with sessions, the first that names a leader's epoch, the first with a rack.
_SESSIONS, _EPOCHS, _RACK = 7, 9, 11
#: What a request says of its epoch: it begins a session; it is the one after the first, and after the last.
_NEW, _NEXT, _LAST = 0, 1, 2**31 - 1
_UNKNOWN = -1
#: A partition's offset and how many bytes of it are wanted at most.
Wanted = tuple[int, int]
#: Of topics that are read by name.
NO_IDS: Mapping[str, bytes] = {}
#: Bytes of an answer that brings little, and how long a reader rests after one, in seconds.
_LITTLE = 64 << 10
_REST, _LONGEST_REST = 0.01, 0.02


class FetchSession:
    """The session of one reader at one broker."""

    def __init__(self) -> None:
        self.incremental = 0
        self.reset()

    def reset(self) -> None:
        """The broker's session is gone or unknown: the next request names every partition."""
        self.id, self._epoch = 0, _NEW
        self._known: dict[TopicPartition, Wanted] = {}

    def next(
        self, wanted: dict[TopicPartition, Wanted]
    ) -> tuple[int, dict[TopicPartition, Wanted], list[TopicPartition]]:
        """The epoch of the next request, what it has to name, and what is to be forgotten. From here on the
        broker is taken to know that, until `reset`.
        """
        epoch, known, self._known = self._epoch, self._known, wanted
        self._epoch = _NEXT if epoch in (_NEW, _LAST) else epoch + 1
        if epoch == _NEW:
            return epoch, wanted, []
        self.incremental += 1
        changed = {tp: each for tp, each in wanted.items() if known.get(tp) != each}
        return epoch, changed, [tp for tp in known if tp not in wanted]

    def answered(self, session_id: int, error_code: int) -> None:
        """The broker's answer. Without an id it keeps no session; an error means that it has lost it."""
        if error_code or not session_id:
            self.reset()
        else:
            self.id = session_id


class SessionFetch(FetchRequest):
    """A fetch within a session."""

    def __init__(
        self, whole: FetchRequest, session: FetchSession, topic_ids: Mapping[str, bytes] = NO_IDS
    ) -> None:
        """Topics are named by their ids where the broker can do that, and all of them are known."""
        super().__init__(
            whole._max_wait_ms,
            whole._min_bytes,
            whole._max_bytes,
            whole._isolation_level,
            whole.topics,
            whole._rack_id,
        )
        self.session = session
        self._ids = topic_ids

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """The request in the newest version that both sides have."""
        least, most = versions.get(self.API_KEY, (0, 0))
        if most >= BY_ID and any(topic not in self._ids for topic, _ in self.topics):
            versions = {**versions, self.API_KEY: (least, BY_ID - 1)}
        return super().prepare(versions)

    def build(self, request_struct_class: type[FetchRequestStruct | FetchRequest_v13]) -> Any:
        """The request as this version has it; the whole of it where there are no sessions yet."""
        version = request_struct_class.API_VERSION
        if version < _SESSIONS:
            return super().build(request_struct_class)
        wanted = {
            TopicPartition(topic, partition): (offset, size)
            for topic, partitions in self.topics
            for partition, offset, size in partitions
        }
        session_id = self.session.id
        epoch, named, forgotten = self.session.next(wanted)
        leader = (_UNKNOWN,) if version >= _EPOCHS else ()
        fields: list[Any] = [_UNKNOWN, self._max_wait_ms, self._min_bytes, self._max_bytes]
        fields += [self._isolation_level, session_id, epoch]
        if version >= BY_ID:
            return request_struct_class(*fields, *self._by_id(named, forgotten), self._rack_id, {})
        topics: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
        for tp, (offset, size) in named.items():
            topics[tp.topic].append((tp.partition, *leader, offset, _UNKNOWN, size))
        fields += [list(topics.items()), _by_topic(forgotten)]
        return request_struct_class(*fields, *([self._rack_id] if version >= _RACK else []))

    def _by_id(
        self, named: Mapping[TopicPartition, Wanted], forgotten: Iterable[TopicPartition]
    ) -> tuple[list[Any], list[Any]]:
        """The partitions to fetch and to forget, in the form of the version with ids."""
        topics: defaultdict[bytes, list[Any]] = defaultdict(list)
        for tp, (offset, size) in named.items():
            wanted: Any = (tp.partition, _UNKNOWN, offset, _UNKNOWN, _UNKNOWN, size, {})
            topics[self._ids[tp.topic]].append(wanted)
        gone: list[Any] = [(self._ids[topic], partitions, {}) for topic, partitions in _by_topic(forgotten)]
        return [(topic_id, wanted, {}) for topic_id, wanted in topics.items()], gone


# Not in the class: aiokafka sets those of each class that is derived.
SessionFetch._CLASSES = (*FetchRequest._CLASSES, FetchRequest_v13)


def _by_topic(tps: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for tp in tps:
        found[tp.topic].append(tp.partition)
    return list(found.items())


class Sessions:
    """Fetch sessions of one consumer, by broker. Replaces `send` of the consumer's own client."""

    def __init__(self, send: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.of: defaultdict[int, FetchSession] = defaultdict(FetchSession)
        self._send = send
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        #: Topics that were unknown to a broker in its last answer.
        self.unknown: set[str] = set()
        #: When each broker has answered last, by the monotonic clock, and how many bytes of records came.
        self._answered: dict[int | None, float] = {}
        self._brought: dict[int, int] = {}

    def begin(self, topic_ids: Mapping[str, bytes]) -> None:
        """From now on other partitions are read, of topics with these ids."""
        self._ids, self._names = dict(topic_ids), {each: topic for topic, each in topic_ids.items()}
        self.unknown.clear()
        for session in self.of.values():
            session.reset()

    def silence(self, now: float, brokers: Iterable[int | None]) -> float:
        """For how many seconds one of these brokers has not answered: the longest; infinite where one never
        has, or is not known. A broker may hold an answer back for as long as the reader lets it.
        """
        return now - min((self._answered.get(each, -inf) for each in brokers), default=-inf)

    async def send(self, node_id: int, request: Any, **more: Any) -> Any:
        """Send a request; a fetch goes within its broker's session. Raises what the client raises."""
        if type(request) is not FetchRequest:
            return await self._send(node_id, request, **more)
        session, names = self.of[node_id], self._names
        if (rest := self._rest(node_id)) > 0:
            await asyncio.sleep(rest)
        try:
            response = await self._send(node_id, SessionFetch(request, session, self._ids), **more)
        except BaseException:  # also where it was cancelled: the broker may have got it
            session.reset()
            raise
        self._answered[node_id] = monotonic()
        if response.API_VERSION >= _SESSIONS:
            session.answered(response.session_id, response.error_code)
        if response.API_VERSION >= BY_ID:
            name_topics(response, names)
        self._brought[node_id] = self._look(response.topics)
        return response

    def _rest(self, node_id: int) -> float:
        """Seconds until the next fetch from a broker whose last answer brought little: as long as the reader
        was busy with that, within bounds. A transaction ends in one partition after the other; the others
        come together then.
        """
        if not 0 < self._brought.get(node_id, 0) < _LITTLE:
            return 0.0
        return min(max(monotonic() - self._answered[node_id], _REST), _LONGEST_REST)

    def _look(self, topics: Iterable[tuple[str, Iterable[tuple[Any, ...]]]]) -> int:
        """Whether the broker has the topics that it answers for. Returns the bytes of records that came."""
        brought = 0
        for topic, partitions in topics:
            brought += sum(len(records or b"") for *_, records in partitions)
            if any(error in UNKNOWN for _, error, *_ in partitions):
                self.unknown.add(topic)
            else:
                self.unknown.discard(topic)
        return brought
