"""Kafka requests that aiokafka lacks.

- DescribeProducers and ListTransactions (KIP-664), version 0, show which transactions are open on a
  partition. Brokers since 3.0 support them.
- OffsetFetch, version 7, with `require_stable` (KIP-447, KAFKA-14499), waits for the last commit. Without it,
  a coordinator that has just taken over answers only from what its replicas are known to have. Until a
  follower catches up, seconds or minutes later, acknowledged commits are missing from its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from streams.ports import TP, Commit, OpenTransaction

#: Error code: an open transaction is about to change the committed offset.
UNSTABLE = 88

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


def _topics(*partition: Any) -> tuple[str, CompactArray]:
    """The schema field for topics, each with an array of partitions with these fields."""
    return "topics", CompactArray(("name", _TEXT), ("partitions", CompactArray(*partition)), _TAGS)


class _ProducersResponse(Response):
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        _topics(
            ("partition", Int32),
            ("error_code", Int16),
            ("error_message", _TEXT),
            (
                "producers",
                CompactArray(
                    ("producer_id", Int64),
                    ("producer_epoch", Int32),
                    ("last_sequence", Int32),
                    ("last_timestamp", Int64),
                    ("coordinator_epoch", Int32),
                    ("first_offset", Int64),
                    _TAGS,
                ),
            ),
            _TAGS,
        ),
        _TAGS,
    )


class _ProducersRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = _ProducersResponse
    SCHEMA = Schema(_topics(Int32), _TAGS)


class _TransactionsResponse(Response):
    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_states", CompactArray(_TEXT)),
        (
            "transactions",
            CompactArray(("transactional_id", _TEXT), ("producer_id", Int64), ("state", _TEXT), _TAGS),
        ),
        _TAGS,
    )


class _TransactionsRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 66
    API_VERSION = 0
    RESPONSE_TYPE = _TransactionsResponse
    SCHEMA = Schema(("states", CompactArray(_TEXT)), ("producer_ids", CompactArray(Int64)), _TAGS)


class _OffsetsResponse(Response):
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        _topics(
            ("partition", Int32),
            ("offset", Int64),
            ("leader_epoch", Int32),
            ("metadata", _TEXT),
            ("error_code", Int16),
            _TAGS,
        ),
        ("error_code", Int16),
        _TAGS,
    )


class _OffsetsRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = _OffsetsResponse
    SCHEMA = Schema(("group", _TEXT), _topics(Int32), ("require_stable", Boolean), _TAGS)


class DescribeProducers(Request[_ProducersRequest]):
    """Asks the leader of partitions which producers have written to them lately."""

    API_KEY = 61

    def __init__(self, partitions: Mapping[str, list[int]]) -> None:
        self._partitions = partitions

    def build(self, request_struct_class: type[_ProducersRequest]) -> _ProducersRequest:
        """The request as it is sent."""
        named: list[Any] = [(topic, numbers, {}) for topic, numbers in self._partitions.items()]
        return request_struct_class(named, {})


class ListTransactions(Request[_TransactionsRequest]):
    """Asks a broker for the transactional ids that it coordinates and that have these producer ids."""

    API_KEY = 66

    def __init__(self, producers: Iterable[int]) -> None:
        self._producers = list(producers)

    def build(self, request_struct_class: type[_TransactionsRequest]) -> _TransactionsRequest:
        """The request as it is sent."""
        return request_struct_class([], self._producers, {})


def first_open(answer: _ProducersResponse) -> dict[TP, OpenTransaction]:
    """The earliest open transaction of each partition, which is the one that blocks readers. Raises the
    broker's error.
    """
    found: dict[TP, OpenTransaction] = {}
    for topic, partitions, _ in answer.topics:
        for partition, error, text, producers, _ in partitions:
            if error:
                raise for_code(error)(text or f"{topic}[{partition}]")
            opened = [
                OpenTransaction(first, producer, epoch, last / 1000)
                for producer, epoch, _, last, _, first, _ in producers
                if first >= 0
            ]
            if opened:
                found[TP(topic, partition)] = min(opened)
    return found


def ids_in(answer: _TransactionsResponse) -> dict[int, str]:
    """The transactional id of each producer id. Raises the broker's error."""
    if answer.error_code:
        raise for_code(answer.error_code)("the open transactions")
    return {producer: name for name, producer, _, _ in answer.transactions}


class StableOffsets(Request[_OffsetsRequest]):
    """Asks a group's coordinator for committed offsets. `positions_in` reads the answer."""

    API_KEY = 9

    def __init__(self, group: str, partitions: dict[str, list[int]]) -> None:
        self._group = group
        self._partitions = partitions

    def build(self, request_struct_class: type[_OffsetsRequest]) -> _OffsetsRequest:
        """The request as it is sent."""
        no_tags: dict[int, bytes] = {}
        topics = [(topic, partitions, no_tags) for topic, partitions in self._partitions.items()]
        return request_struct_class(self._group, topics, True, no_tags)


def positions_in(answer: _OffsetsResponse) -> list[tuple[TP, Commit, int]]:
    """Each partition with its commit and error code. The offset is negative if nothing was committed."""
    return [
        (TP(topic, partition), Commit(offset, epoch, text or ""), error)
        for topic, partitions, _ in answer.topics
        for partition, offset, epoch, text, error, _ in partitions
    ]
