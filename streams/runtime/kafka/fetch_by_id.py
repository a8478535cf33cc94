"""Kafka's Fetch request in the version that names topics by their ids (KIP-516); aiokafka does not have it.

By name a reader goes on in a topic that was deleted and made again, at an offset of the former one, and
passes over what is before it. By id the first answer is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka.protocol.api import RequestStruct, Response
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
    not asked for is left out.
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
