"""Lists the members of a consumer group, including KIP-848 groups, which aiokafka does not know."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from streams.kafka.topic_ids import Uuid

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_ASSIGNMENT = Schema(
    (
        "topic_partitions",
        CompactArray(("topic_id", Uuid), ("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS),
    ),
    _TAGS,
)


class _MembersResponse(Response):
    API_KEY = 69
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("group", _TEXT),
                ("state", _TEXT),
                ("epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", _TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", _TEXT),
                        ("instance_id", _TEXT),
                        ("rack_id", _TEXT),
                        ("epoch", Int32),
                        ("client_id", _TEXT),
                        ("host", _TEXT),
                        ("topics", CompactArray(_TEXT)),
                        ("topic_regex", _TEXT),
                        ("assignment", _ASSIGNMENT),
                        ("target", _ASSIGNMENT),
                        _TAGS,
                    ),
                ),
                ("operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _MembersRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 69
    API_VERSION = 0
    RESPONSE_TYPE = _MembersResponse
    SCHEMA = Schema(("groups", CompactArray(_TEXT)), ("operations", Boolean), _TAGS)


class ConsumerGroupDescribe(Request[_MembersRequest]):
    """Asks a coordinator for the members of a group that uses the `consumer` protocol (KIP-848)."""

    API_KEY = 69

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[_MembersRequest]) -> _MembersRequest:
        """The request as it is sent."""
        return request_struct_class([self._group], False, {})


class GroupMember(NamedTuple):
    """A member of a group, its host, and the protocol and assignor of the group."""

    name: str
    host: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.name} at {self.host.lstrip('/')} (protocol {self.protocol})"


async def members_of(coordinator: Any) -> list[GroupMember]:
    """The members of the group of an aiokafka coordinator. Raises KafkaError."""
    group, send = coordinator.group_id, coordinator._send_req
    try:
        answer = await send(ConsumerGroupDescribe(group))
    except IncompatibleBrokerVersion:  # brokers before Kafka 4.0 have no such groups
        pass
    else:
        for error, _, _, _, _, _, assignor, members, _, _ in answer.groups:
            if not error and members:
                protocol = f"consumer, {assignor}"
                return [GroupMember(each[4] or each[0], each[5], protocol) for each in members]
    answer = await send(DescribeGroupsRequest([group]))
    found = []
    for described in answer.groups:
        protocol = f"{described[3] or 'none'}, {described[4] or 'none'}"
        found += [GroupMember(each[1] or each[0], each[2], protocol) for each in described[5]]
    return found


async def named_members(coordinator: Any) -> str:
    """The first five members of the group as text for a log line or error, or why they are unknown."""
    try:
        found = await members_of(coordinator)
    except KafkaError as error:
        return f"members that the broker does not name ({type(error).__name__})"
    return ", ".join(map(str, found[:5])) or "nobody that the broker names"
