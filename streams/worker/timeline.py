"""Looks through topics for the records of a key: from a time to the committed end, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic

from streams.control.base.scans import MOST_FOUND, MOST_FOUND_BYTES, Question, Scan, size_of
from streams.kafka.cluster import KafkaCluster
from streams.kafka.reader import KafkaReader
from streams.kafka.sieve import Sieve
from streams.ports import TP, Record

#: Records taken at once, between two turns of the event loop that lanes share.
_AT_ONCE = 500
#: Seconds that a fetch is waited for before the bounds are looked at again.
_WAIT = 0.25


async def scan(cluster: KafkaCluster, question: Question) -> Scan:
    """Answer a question. Raises ClusterUnavailable, TopicMismatch, or PositionLost when what is read
    expires meanwhile.
    """
    until = monotonic() + question.seconds
    reader, sieve = await cluster.sieving_reader(question.wanted)
    try:
        ranges = await reader.ranges_since(question.partitions, question.since_ms)
        await reader.assign({tp: first for tp, (first, _) in ranges.items()})
        return await _look(reader, sieve, ranges, question, until)
    finally:
        await reader.close()


async def _look(
    reader: KafkaReader, sieve: Sieve, ranges: Mapping[TP, tuple[int, int]], question: Question, until: float
) -> Scan:
    at = {tp: first for tp, (first, _) in ranges.items()}
    found: list[Record] = []
    stopped = ""
    while left := [tp for tp, (_, end) in ranges.items() if at[tp] < end]:
        if stopped := _why_stop(found, _looked(at, ranges), question, until):
            break
        for batch in await reader.fetch(max_records=_AT_ONCE, timeout=_WAIT):
            at[batch.tp] = batch.next_offset
            end = ranges[batch.tp][1]
            found += [each for each in batch.records if each.offset < end and question.means(each)]
        await asyncio.sleep(0)
    reached = min((sieve.reached.get(tp, question.since_ms) for tp in left), default=None)
    return Scan(found, _looked(at, ranges), len(ranges), reached, stopped)


def _looked(at: Mapping[TP, int], ranges: Mapping[TP, tuple[int, int]]) -> int:
    return sum(min(at[tp], end) - first for tp, (first, end) in ranges.items())


def _why_stop(found: list[Record], looked: int, question: Question, until: float) -> str:
    if looked >= question.most:
        return f"one answer looks at {question.most:,} records at most"
    if len(found) >= MOST_FOUND or size_of(found) >= MOST_FOUND_BYTES:
        return "one answer shows no more"
    if monotonic() >= until:
        return f"one answer takes {question.seconds:g} s at most"
    return ""
