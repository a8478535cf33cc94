"""Requests for a log's last stable offset, and for its first offset since a time (read_committed)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from aiokafka.errors import LeaderNotAvailableError, for_code

from streams.kafka.clients import leader_of
from streams.kafka.wire import CLASSIC, ResponseReader, VersionedRequest
from streams.ports import TP

#: Instead of a time: asks for the last stable offset, where the first open transaction begins.
STABLE_END = -1
_LIST_OFFSETS = 2, 2
_CLIENT, _COMMITTED = -1, 1
_HEAD, _WANTED = struct.Struct(">ib"), struct.Struct(">iq")
_FOUND = struct.Struct(">ihqq")


async def offsets_at(client: Any, times: Mapping[TP, int]) -> dict[TP, int]:
    """The offset of each partition's first record since its time (epoch milliseconds), or its last stable
    offset for STABLE_END. Omits partitions without such a record. Raises KafkaError; a later try may succeed.
    """
    led: defaultdict[int, dict[TP, int]] = defaultdict(dict)
    for tp, time in times.items():
        leader = leader_of(client, tp)
        if leader < 0:
            await client.force_metadata_update()
            raise LeaderNotAvailableError(f"{tp.topic}[{tp.partition}]")
        led[leader][tp] = time
    found: dict[TP, int] = {}
    for node, wanted in led.items():
        for tp, (code, offset) in (await client.send(node, _request(wanted))).items():
            if code:
                await client.force_metadata_update()
                raise for_code(code)(f"{tp.topic}[{tp.partition}]")
            if offset >= 0:
                found[tp] = offset
    return found


def _request(times: Mapping[TP, int]) -> VersionedRequest:
    topics: defaultdict[str, list[bytes]] = defaultdict(list)
    for tp, time in times.items():
        topics[tp.topic].append(_WANTED.pack(tp.partition, time))
    body = bytearray(_HEAD.pack(_CLIENT, _COMMITTED) + CLASSIC.count(len(topics)))
    for topic, wanted in topics.items():
        body += CLASSIC.string(topic) + CLASSIC.count(len(wanted)) + b"".join(wanted)
    return VersionedRequest(_LIST_OFFSETS, CLASSIC, [body], _answer)


def _answer(answer: ResponseReader) -> dict[TP, tuple[int, int]]:
    answer.throttle()
    found = {}
    for _ in range(answer.count()):
        topic = answer.string()
        for _ in range(answer.count()):
            partition, code, _, offset = answer.take(_FOUND)
            found[TP(topic, partition)] = code, offset
    return found
