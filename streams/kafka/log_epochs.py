"""Requests for the leader epochs of partitions, and for the offset where an epoch ends (KIP-320)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka.errors import LeaderNotAvailableError, for_code

from streams.kafka.clients import leader_of
from streams.kafka.wire import CLASSIC, ResponseReader, VersionedRequest
from streams.ports import NO_EPOCH, TP

#: Api keys and versions, of Kafka 2.1 and 2.3.
_LIST_OFFSETS, _EPOCH_END = (2, 4), (23, 3)
_CLIENT, _UNCOMMITTED, _LATEST = -1, 0, -1
_HEAD, _REPLICA = struct.Struct(">ib"), struct.Struct(">i")
_WANTED, _WANTED_END = struct.Struct(">iiq"), struct.Struct(">iii")
_FOUND, _FOUND_END = struct.Struct(">ihqqi"), struct.Struct(">hiiq")

#: Error code and requested value of each partition.
Found = dict[TP, tuple[int, int]]


async def leader_epochs(client: Any, tps: Mapping[TP, int]) -> dict[TP, int]:
    """The epoch of each partition's leader. The values of `tps` are ignored. Raises KafkaError; a later try
    may succeed.
    """
    return await _ask_leaders(client, tps, _latest)


async def epoch_ends(client: Any, epochs: Mapping[TP, int]) -> dict[TP, int]:
    """The offset at which the given epoch ends in each log: the start of the next epoch, or the log's end.
    Omits partitions whose leader does not know the epoch. Raises KafkaError; a later try may succeed.
    """
    return await _ask_leaders(client, epochs, _end_of)


async def _ask_leaders(
    client: Any, wanted: Mapping[TP, int], request: Callable[[Mapping[TP, int]], VersionedRequest]
) -> dict[TP, int]:
    led: defaultdict[int, dict[TP, int]] = defaultdict(dict)
    for tp, each in wanted.items():
        leader = leader_of(client, tp)
        if leader < 0:
            await client.force_metadata_update()
            raise LeaderNotAvailableError(f"{tp.topic}[{tp.partition}]")
        led[leader][tp] = each
    found: dict[TP, int] = {}
    for node, some in led.items():
        for tp, (code, value) in (await client.send(node, request(some))).items():
            if code:
                await client.force_metadata_update()
                raise for_code(code)(f"{tp.topic}[{tp.partition}]")
            if value >= 0:
                found[tp] = value
    return found


def _latest(wanted: Mapping[TP, int]) -> VersionedRequest:
    asked = {tp: _WANTED.pack(tp.partition, NO_EPOCH, _LATEST) for tp in wanted}
    body = _HEAD.pack(_CLIENT, _UNCOMMITTED) + _by_topic(asked)
    return VersionedRequest(_LIST_OFFSETS, CLASSIC, [body], _epochs)


def _end_of(epochs: Mapping[TP, int]) -> VersionedRequest:
    asked = {tp: _WANTED_END.pack(tp.partition, NO_EPOCH, epoch) for tp, epoch in epochs.items()}
    body = _REPLICA.pack(_CLIENT) + _by_topic(asked)
    return VersionedRequest(_EPOCH_END, CLASSIC, [body], _ends)


def _by_topic(asked: Mapping[TP, bytes]) -> bytes:
    topics: defaultdict[str, list[bytes]] = defaultdict(list)
    for tp, each in asked.items():
        topics[tp.topic].append(each)
    parts = [CLASSIC.count(len(topics))]
    for topic, some in topics.items():
        parts += CLASSIC.string(topic), CLASSIC.count(len(some)), *some
    return b"".join(parts)


def _epochs(answer: ResponseReader) -> Found:
    answer.throttle()
    found = {}
    for _ in range(answer.count()):
        topic = answer.string()
        for _ in range(answer.count()):
            partition, code, _, _, epoch = answer.take(_FOUND)
            found[TP(topic, partition)] = code, epoch
    return found


def _ends(answer: ResponseReader) -> Found:
    answer.throttle()
    found = {}
    for _ in range(answer.count()):
        topic = answer.string()
        for _ in range(answer.count()):
            code, partition, _, end = answer.take(_FOUND_END)
            found[TP(topic, partition)] = code, end
    return found
