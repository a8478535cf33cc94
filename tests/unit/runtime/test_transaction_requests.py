"""Requests as they are sent, and answers as brokers write them."""

import gc
import struct
import weakref
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, LeaderNotAvailableError
from aiokafka.protocol import transaction as theirs
from aiokafka.protocol.produce import ProduceRequest_v8, ProduceResponse_v8
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from streams.kafka.topic_ids import TopicIdsRequest, identity_in
from streams.kafka.transactions import requests
from streams.kafka.transactions.requests import V1, V2, Owner, TransactionAnswer, WrittenBatch
from streams.kafka.wire import CLASSIC, FLEXIBLE, ResponseReader, VersionedRequest
from streams.ports import TP, Identity, Note

OWNER = Owner("lane-é", 2**40, 32_000)
A0, A7, B3 = TP("a", 0), TP("a", 7), TP("b" * 200, 3)
GROUP = "the group"
STRING, TAGS = CompactString("utf-8"), ("tags", TaggedFields)


def read(call: VersionedRequest, body: bytes) -> Any:
    return call.decode(BytesIO(body))


def test_a_request_is_let_go_of_without_the_garbage_collector() -> None:
    """It referred to itself: what transactions had written stayed, 50 MB of it in a busy worker."""
    gc.disable()
    try:
        call = requests.produce(V2, OWNER, {A0: bytearray(b"batch")}, 1.0)
        assert call.prepare({0: (0, 12)}).RESPONSE_TYPE is call
        gone = weakref.ref(call)
        del call
        assert gone() is None
    finally:
        gc.enable()


# The first version: as aiokafka writes and reads it, but for positions, whose version 2 it does not have

TEXT = String("utf-8")
COMMIT_OFFSETS_V1 = Schema(
    ("transactional_id", TEXT),
    ("group", TEXT),
    ("producer_id", Int64),
    ("epoch", Int16),
    (
        "topics",
        Array(
            ("name", TEXT),
            (
                "partitions",
                Array(("index", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT)),
            ),
        ),
    ),
)


class Written(NamedTuple):
    body: bytes

    def encode(self) -> bytes:
        return self.body


def test_the_requests_of_the_first_version_are_those_of_aiokafka() -> None:
    ident, *owner = OWNER
    offsets = [("a", [(0, 5, 3, "it"), (7, 2**40, -1, "")]), (B3.topic, [(3, 0, -1, "")])]
    batches = [("a", [(0, b"batch"), (7, b"")]), (B3.topic, [(3, b"x" * 300)])]
    for ours, theirs_of_it in (
        (requests.init_producer("id", 15.0), theirs.InitProducerIdRequest_v0("id", 15_000)),
        (
            requests.add_partitions(OWNER, [A0, A7, B3]),
            theirs.AddPartitionsToTxnRequest_v0(*OWNER, [("a", [0, 7]), (B3.topic, [3])]),
        ),
        (requests.add_offsets(OWNER, GROUP), theirs.AddOffsetsToTxnRequest_v0(*OWNER, GROUP)),
        (
            requests.commit_offsets(V1, OWNER, GROUP, {A0: 5, A7: 2**40, B3: 0}, {A0: Note(3, "it")}),
            Written(COMMIT_OFFSETS_V1.encode((ident, GROUP, *owner, offsets))),
        ),
        (requests.end(V1, OWNER), theirs.EndTxnRequest_v0(*OWNER, True)),
        (
            requests.produce(V1, OWNER, {A0: b"batch", B3: b"x" * 300, A7: b""}, 25.0),
            ProduceRequest_v8(ident, -1, 25_000, batches),
        ),
    ):
        assert ours.encode() == theirs_of_it.encode()


def test_the_answers_of_the_first_version_are_read() -> None:
    init = theirs.InitProducerIdResponse_v0(0, 0, 77, 3)
    assert read(requests.init_producer("id", 1.0), init.encode()) == TransactionAnswer(0, 77, 3)
    ended = theirs.EndTxnResponse_v0(9, 51)
    assert read(requests.end(V1, OWNER), ended.encode()) == TransactionAnswer(51)
    added = theirs.AddPartitionsToTxnResponse_v0(0, [("a", [(0, 0), (7, 51)]), ("b", [(3, 29)])])
    codes = read(requests.add_partitions(OWNER, []), added.encode())
    assert codes == {A0: 0, A7: 51, TP("b", 3): 29}
    assert set(codes.codes) == {0, 51, 29}
    refused = (7, 87, -1, -1, -1, [(2, "no key"), (4, None)], "refused")
    topics = [("a", [(0, 0, 2**40, -1, 0, [], None), refused]), ("b", [(3, 6, -1, -1, -1, [], None)])]
    written = ProduceResponse_v8(topics, 0)
    assert read(requests.produce(V1, OWNER, {}, 1.0), written.encode()) == {
        A0: WrittenBatch(0, 2**40, ""),
        A7: WrittenBatch(87, -1, "refused; no key"),
        TP("b", 3): WrittenBatch(6, -1, ""),
    }


# The second version: as its description has it


def array(*fields: tuple[str, Any]) -> CompactArray:
    return CompactArray(*fields, TAGS)


def schema(**fields: Any) -> Schema:
    return Schema(*fields.items(), TAGS)


PRODUCE = schema(
    transactional_id=STRING,
    acks=Int16,
    timeout=Int32,
    topics=array(("name", STRING), ("partitions", array(("index", Int32), ("records", CompactBytes)))),
)
OFFSETS = array(("index", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", STRING))
COMMIT_OFFSETS = schema(
    transactional_id=STRING,
    group=STRING,
    producer_id=Int64,
    epoch=Int16,
    generation=Int32,
    member=STRING,
    instance=STRING,
    topics=array(("name", STRING), ("partitions", OFFSETS)),
)
END = schema(transactional_id=STRING, producer_id=Int64, epoch=Int16, committed=Boolean)


def test_the_requests_of_the_second_version_are_as_described() -> None:
    none: dict[int, bytes] = {}
    ident, *owner = OWNER
    batches = [("a", [(0, b"batch", none)], none), (B3.topic, [(3, b"x" * 300, none)], none)]
    produced = requests.produce(V2, OWNER, {A0: b"batch", B3: b"x" * 300}, 25.0)
    assert produced.encode() == PRODUCE.encode((ident, -1, 25_000, batches, none))
    offsets = [("a", [(0, 5, -1, "", none), (7, 2**40, -1, "", none)], none)]
    committed = requests.commit_offsets(V2, OWNER, GROUP, {A0: 5, A7: 2**40})
    assert committed.encode() == COMMIT_OFFSETS.encode((ident, GROUP, *owner, -1, "", None, offsets, none))
    assert requests.end(V2, OWNER).encode() == END.encode((*OWNER, True, none))


def test_the_answers_of_the_second_version_are_read_over_tags() -> None:
    tags = b"\x02\x00\x03abc\x05\x01x"  # two fields: number 0 of three bytes, number 5 of one
    partition = struct.pack(">ihqqq", 7, 87, -1, -1, -1)
    body = (
        b"\x02\x02a\x02" + partition + b"\x02" + struct.pack(">i", 2) + b"\x07no key" + tags
        + b"\x08refused" + tags + tags + struct.pack(">i", 0) + tags
    )  # fmt: skip
    assert read(requests.produce(V2, OWNER, {}, 1.0), body) == {A7: WrittenBatch(87, -1, "refused; no key")}
    ended = struct.pack(">ihqh", 0, 0, 78, 0) + tags
    assert read(requests.end(V2, OWNER), ended) == TransactionAnswer(0, 78, 0)
    codes = struct.pack(">i", 0) + b"\x02\x02a\x02" + struct.pack(">ih", 7, 51) + tags + tags + tags
    assert read(requests.commit_offsets(V2, OWNER, GROUP, {}), codes) == {A7: 51}


def test_an_answer_that_ends_early_is_an_error() -> None:
    with pytest.raises(struct.error):
        read(requests.end(V2, OWNER), b"\0\0")
    with pytest.raises(ValueError, match="2 bytes early"):
        ResponseReader(b"\x04a", FLEXIBLE).string()


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 20_000, 3_000_000])
def test_lengths_are_written_as_they_are_read(length: int) -> None:
    for form in (CLASSIC, FLEXIBLE):
        assert ResponseReader(form.count(length), form).count() == length
    assert ResponseReader(FLEXIBLE.string("x" * length), FLEXIBLE).string() == "x" * length


# Which of them


def versions(features: Mapping[str, int], *, produce: int = 13, end: int = 5, code: int = 0) -> bytes:
    """What a broker answers when it is asked for versions and features."""
    none: dict[int, bytes] = {}
    keys = CompactArray(("key", Int16), ("lowest", Int16), ("highest", Int16), TAGS)
    levels = CompactArray(("name", STRING), ("highest", Int16), ("lowest", Int16), TAGS)
    told = levels.encode([(name, level, level, none) for name, level in features.items()])
    supported = b"\x02" + STRING.encode("transaction.version") + struct.pack(">hh", 0, 2) + b"\0"
    body = Int16.encode(code) + keys.encode([(0, 3, produce, none), (26, 0, end, none), (28, 0, 5, none)])
    fields = (supported, struct.pack(">q", 9), told)
    tags = b"".join(bytes((number, len(value))) + value for number, value in enumerate(fields))
    return body + Int32.encode(0) + bytes((len(fields),)) + tags


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        pytest.param(versions({"metadata.version": 27, "transaction.version": 2}), V2, id="level 2"),
        pytest.param(versions({"transaction.version": 3}), V2, id="level 3"),
        pytest.param(versions({"transaction.version": 1}), V1, id="level 1"),
        pytest.param(versions({"metadata.version": 27}), V1, id="no level"),
        pytest.param(versions({}), V1, id="no features"),
        pytest.param(versions({"transaction.version": 2}, produce=11), V1, id="old produce"),
        pytest.param(versions({"transaction.version": 2}, end=4), V1, id="old end"),
        pytest.param(versions({"transaction.version": 2}, code=42), V1, id="error"),
        pytest.param(struct.pack(">h", 0) + b"\x01" + struct.pack(">i", 0) + b"\0", V1, id="bare"),
    ],
)
def test_the_second_version_is_spoken_where_there_is_its_feature(answer: bytes, protocol: Any) -> None:
    assert read(requests.protocol_of(), answer) is protocol


@pytest.mark.parametrize(
    ("call", "left"), [(requests.protocol_of(), b"\x00\x23"), (requests.end(V2, OWNER), b"\x23")]
)
def test_the_answer_of_versions_has_the_old_header(call: VersionedRequest, left: bytes) -> None:
    """The others have the new one."""
    rest = BytesIO(struct.pack(">i", 5) + b"\x00\x23")
    assert call.parse_response_header(rest).correlation_id == 5
    assert rest.read() == left


def test_a_request_is_not_sent_in_an_unspoken_version() -> None:
    call = requests.end(V2, OWNER)
    assert call.prepare({26: (0, 5)}) is call
    for spoken in ({26: (0, 4)}, {26: (6, 7)}, {}):
        with pytest.raises(IncompatibleBrokerVersion):
            call.prepare(spoken)


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
