"""The question for topic ids as it is sent, and its answer as brokers write it."""

import pytest
from aiokafka.errors import LeaderNotAvailableError

from streams.ports import Identity
from streams.runtime.kafka.topic_ids import TopicIdsRequest, identity_in

ID = bytes(range(16))


def request() -> object:
    return TopicIdsRequest(["orders"]).prepare({3: (0, 13)})


def answered(*topics: bytes) -> Identity:
    data = b"".join(
        (
            bytes(4),  # throttle time
            b"\x02" + b"\0\0\0\x01" + b"\x05host" + b"\0\0\x23\x84" + b"\0" + b"\0",  # a broker without rack
            b"\x08cluster",
            b"\0\0\0\x01",  # controller
            bytes([len(topics) + 1]),
            *topics,
            b"\0",
        )
    )
    return identity_in(request().RESPONSE_TYPE.decode(data))


def topic(name: bytes, ident: bytes, error: int = 0) -> bytes:
    partition = b"\0\0" + bytes(4) + b"\0\0\0\x01" + bytes(4) + (b"\x02\0\0\0\x01" * 2) + b"\x01" + b"\0"
    head = error.to_bytes(2, "big") + bytes([len(name) + 1]) + name + ident + b"\0"
    return head + b"\x02" + partition + b"\x80\0\0\0" + b"\0"


def test_topics_are_asked_for_by_name_and_none_is_made() -> None:
    assert request().encode() == b"\x02" + bytes(16) + b"\x07orders" + b"\0" + b"\0" + b"\0" + b"\0"
    assert request().build_request_header(1, "me").encode().endswith(b"\0")  # of a flexible version


def test_ids_are_told_as_kafka_prints_them() -> None:
    found = answered(topic(b"orders", ID), topic(b"gone", bytes(16), error=3))
    assert found == Identity("cluster", {"orders": "AAECAwQFBgcICQoLDA0ODw"}, {"orders": 1})


def test_a_topic_without_an_id_is_asked_for_again() -> None:
    with pytest.raises(LeaderNotAvailableError):
        answered(topic(b"orders", bytes(16), error=5))
