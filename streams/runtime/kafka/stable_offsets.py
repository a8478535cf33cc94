"""The request for a group's committed positions that waits for what was committed last.

aiokafka's request has no `require_stable`. Without it a coordinator answers from what its replicas are known
to have. One that has just taken over does not know that yet of commits that were acknowledged before: until a
follower has caught up, seconds later or minutes, it tells positions from before them. With it, the answer
waits for that (KIP-447, KAFKA-14499).
"""

from __future__ import annotations

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

from streams.ports import TP

#: The code of the error that an open transaction is about to move a position.
UNSTABLE = 88


class _Response(Response):
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _Request(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class StableOffsets(Request[_Request]):
    """Asks a group's coordinator for positions. The answer's `topics` are for `positions_in`."""

    API_KEY = 9

    def __init__(self, group: str, partitions: dict[str, list[int]]) -> None:
        self._group = group
        self._partitions = partitions

    def build(self, request_struct_class: type[_Request]) -> _Request:
        """The request as it is sent."""
        no_tags: dict[int, bytes] = {}
        topics = [(topic, partitions, no_tags) for topic, partitions in self._partitions.items()]
        return request_struct_class(self._group, topics, True, no_tags)


def positions_in(answer: _Response) -> list[tuple[TP, int, int]]:
    """Each partition with its position, negative when it has none, and the code of its error."""
    return [
        (TP(topic, partition), offset, error)
        for topic, partitions, _ in answer.topics
        for partition, offset, _, _, error, _ in partitions
    ]
