"""Committed positions are asked for with `require_stable`: a coordinator that has just taken over waits."""

from io import BytesIO
from typing import Any

import pytest
from aiokafka.errors import NotCoordinatorForGroupError

from streams.errors import ClusterUnavailable
from streams.kafka.clients import KafkaOptions
from streams.kafka.metadata import Metadata
from streams.kafka.protocol import UNSTABLE, StableOffsets, positions_in
from streams.ports import TP, Commit

VERSIONS = {9: (1, 10)}  # of Kafka 4
NOT_COORDINATOR = 16

# As the protocol guide says: compact strings and arrays begin with their length plus one; 0 ends a struct.
REQUEST = (
    b"\x05shop"  # the group
    b"\x02"  # one topic
    b"\x06cards" + b"\x03" + (0).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"\x00"
    b"\x01"  # require_stable
    b"\x00"
)


def partition(number: int, offset: int, error: int = 0, metadata: bytes = b"\x01") -> bytes:
    return (
        number.to_bytes(4, "big")
        + offset.to_bytes(8, "big", signed=True)
        + (-1).to_bytes(4, "big", signed=True)
        + metadata
        + error.to_bytes(2, "big")
        + b"\x00"
    )


def answer(*partitions: bytes, error: int = 0) -> bytes:
    topics = b"\x02\x06cards" + bytes([len(partitions) + 1]) + b"".join(partitions) + b"\x00"
    return bytes(4) + topics + error.to_bytes(2, "big") + b"\x00"


def test_the_request_says_that_positions_must_be_stable() -> None:
    request = StableOffsets("shop", {"cards": [0, 7]}).prepare(VERSIONS)
    assert (request.API_KEY, request.API_VERSION) == (9, 7)
    assert request.encode() == REQUEST


def test_the_answer_is_read() -> None:
    request = StableOffsets("shop", {"cards": [0, 7]}).prepare(VERSIONS)
    data = answer(partition(0, 41), partition(7, -1, error=3, metadata=b"\x00"))
    found = request.RESPONSE_TYPE.decode(BytesIO(data))
    assert positions_in(found) == [(TP("cards", 0), Commit(41), 0), (TP("cards", 7), Commit(-1), 3)]


class Admin:
    """Answers as a coordinator does, and keeps what it was asked."""

    def __init__(self, *answers: bytes) -> None:
        self.asked: list[bytes] = []
        self._answers = list(answers)
        self._client = self

    async def find_coordinator(self, group: str) -> int:
        return 1

    async def send(self, node: int, request: Any) -> Any:
        built = request.prepare(VERSIONS)
        self.asked.append(built.encode())
        data = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return built.RESPONSE_TYPE.decode(BytesIO(data))


def metadata_of(admin: Admin, **options: Any) -> Metadata:
    metadata = Metadata("nowhere:1", KafkaOptions(**options))
    metadata._admin = admin
    return metadata


@pytest.mark.promise("broker-failure")
async def test_a_lane_asks_for_stable_positions_again_and_again() -> None:
    """A coordinator whose replicas do not get on answers with NOT_COORDINATOR (KAFKA-17267)."""
    admin = Admin(answer(error=NOT_COORDINATOR), answer(partition(0, 41), partition(7, -1)))
    wanted = [TP("cards", 0), TP("cards", 7)]
    assert await metadata_of(admin).committed("shop", wanted) == {TP("cards", 0): 41}
    assert admin.asked == [REQUEST, REQUEST]


async def test_a_coordinator_that_never_knows_is_given_up() -> None:
    admin = Admin(answer(error=NOT_COORDINATOR))
    with pytest.raises(ClusterUnavailable, match=NotCoordinatorForGroupError.__name__):
        await metadata_of(admin, metadata_timeout=-0.5).committed("shop", [TP("cards", 0)])


async def test_what_an_open_transaction_moves_stands_until_then() -> None:
    plain = bytes(4) + (1).to_bytes(4, "big") + b"\x00\x05cards" + (1).to_bytes(4, "big")
    plain += (7).to_bytes(4, "big") + (12).to_bytes(8, "big") + bytes(2) + bytes(2) + bytes(2)
    admin = Admin(answer(partition(0, 41), partition(7, -1, error=UNSTABLE)), plain)
    wanted = [TP("cards", 0), TP("cards", 7)]
    assert await metadata_of(admin).committed("shop", wanted) == {TP("cards", 0): 41, TP("cards", 7): 12}
    assert admin.asked[0] == REQUEST
    assert len(admin.asked) == 2
