"""Kafka's Metadata request in version 12, which returns topic ids and which aiokafka lacks."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from io import BytesIO
from typing import Any

from aiokafka.errors import UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from streams.ports import Identity

_NO_ID = bytes(16)


class Uuid:
    """Schema type for a UUID: 16 raw bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes unchanged."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """The next 16 bytes."""
        return data.read(16)

    @classmethod
    def repr(cls, value: bytes) -> str:
        """The bytes in hexadecimal."""
        return value.hex()


_BROKER = (("node_id", Int32), ("host", CompactString("utf-8")), ("port", Int32))
_PARTITION = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline", CompactArray(Int32)),
    ("tags", TaggedFields),
)
_TOPIC = (
    ("error_code", Int16),
    ("topic", CompactString("utf-8")),
    ("topic_id", Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)),
    ("authorized_operations", Int32),
    ("tags", TaggedFields),
)


class _MetadataResponse_v12(Response):  # noqa: N801 - named as aiokafka names them
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*_BROKER, ("rack", CompactString("utf-8")), ("tags", TaggedFields))),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("tags", TaggedFields),
    )


class _MetadataRequest_v12(RequestStruct):  # noqa: N801 - named as aiokafka names them
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _MetadataResponse_v12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdsRequest(Request[_MetadataRequest_v12]):
    """Asks for topics by name, without creating missing ones."""

    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_MetadataRequest_v12]) -> _MetadataRequest_v12:
        """The request as it is sent."""
        named: list[Any] = [(_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(named, False, False, {})


def identity_in(answer: Any) -> Identity:
    """Topic ids and partition counts from an answer, without missing topics. Raises the broker's error."""
    topics, partitions = {}, {}
    for topic in answer.to_object()["topics"]:
        if topic["error_code"] == UnknownTopicOrPartitionError.errno:
            continue
        if topic["topic_id"] == _NO_ID:
            raise for_code(topic["error_code"])(f"no id of {topic['topic']}")
        topics[topic["topic"]] = urlsafe_b64encode(topic["topic_id"]).rstrip(b"=").decode()
        partitions[topic["topic"]] = len(topic["partitions"])
    return Identity(answer.cluster_id or "", topics, partitions)


def id_bytes(topic_id: str) -> bytes:
    """The 16 bytes of a topic id, for requests."""
    return urlsafe_b64decode(topic_id + "==")
