"""Kafka's requests that tell which transactions are open on a partition, which aiokafka does not have yet.

DescribeProducers and ListTransactions (KIP-664), each in its first version; brokers have them since 3.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from streams.ports import TP, OpenTransaction

_PRODUCER = (
    ("producer_id", Int64),
    ("producer_epoch", Int32),
    ("last_sequence", Int32),
    ("last_timestamp", Int64),
    ("coordinator_epoch", Int32),
    ("first_offset", Int64),
    ("tags", TaggedFields),
)
_PARTITION = (
    ("partition", Int32),
    ("error_code", Int16),
    ("error_message", CompactString("utf-8")),
    ("producers", CompactArray(*_PRODUCER)),
    ("tags", TaggedFields),
)


class _ProducersResponse(Response):
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(*_PARTITION)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _ProducersRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = _ProducersResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TransactionsResponse(Response):
    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_states", CompactArray(CompactString("utf-8"))),
        (
            "transactions",
            CompactArray(
                ("transactional_id", CompactString("utf-8")),
                ("producer_id", Int64),
                ("state", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TransactionsRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 66
    API_VERSION = 0
    RESPONSE_TYPE = _TransactionsResponse
    SCHEMA = Schema(
        ("states", CompactArray(CompactString("utf-8"))),
        ("producer_ids", CompactArray(Int64)),
        ("tags", TaggedFields),
    )


class DescribeProducers(Request[_ProducersRequest]):
    """Asks the leader of partitions which producers have written there lately."""

    API_KEY = 61

    def __init__(self, partitions: Mapping[str, list[int]]) -> None:
        self._partitions = partitions

    def build(self, request_struct_class: type[_ProducersRequest]) -> _ProducersRequest:
        """The request as it is sent."""
        named: list[Any] = [(topic, numbers, {}) for topic, numbers in self._partitions.items()]
        return request_struct_class(named, {})


class ListTransactions(Request[_TransactionsRequest]):
    """Asks a broker which of its transactional ids have these producer ids."""

    API_KEY = 66

    def __init__(self, producers: Iterable[int]) -> None:
        self._producers = list(producers)

    def build(self, request_struct_class: type[_TransactionsRequest]) -> _TransactionsRequest:
        """The request as it is sent."""
        return request_struct_class([], self._producers, {})


def first_open(answer: _ProducersResponse) -> dict[TP, OpenTransaction]:
    """Of each partition the open transaction that began first: readers wait for that one. Raises the
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
