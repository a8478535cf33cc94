"""Reads pages of topics: by offset or time, forwards or backwards, within bounds.

Kafka reads forwards alone. Backwards, pieces are read one before the other, each larger than the last: where
transactions and compaction have left holes, a page's records may be far apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from streams.brokers import READ
from streams.control.base.windows import (
    MOST_BYTES,
    MOST_OFFSETS,
    MOST_SECONDS,
    LogRange,
    ReadPage,
    ReadPart,
    Window,
    page_of,
)
from streams.errors import ClusterUnavailable, PositionLost
from streams.kafka.cluster import KafkaCluster
from streams.kafka.reader import KafkaReader
from streams.ports import TP, Record

#: Records taken at once, between two turns of the event loop that lanes share.
_AT_ONCE = 200
#: Seconds that a fetch is waited for before the bounds are looked at again.
_WAIT = 0.25
#: How much larger each piece is than the one behind it.
_GROWS = 4
#: Offsets of the first piece of a partition where a key is looked for: its records may be far apart.
_FIRST_PIECE = 5_000
#: Age up to which records count as recent, in milliseconds.
_RECENT = 60_000


@dataclass(slots=True)
class _Budget:
    """The room that is left on one page."""

    until: float
    bytes: int
    offsets: int
    stopped: str = ""

    def is_spent(self) -> bool:
        if not self.stopped:
            if self.bytes <= 0:
                self.stopped = "one page reads no more bytes"
            elif self.offsets <= 0:
                self.stopped = f"one page looks at {MOST_OFFSETS:,} offsets at most"
            elif monotonic() >= self.until:
                self.stopped = f"one page takes {MOST_SECONDS:g} s at most"
        return bool(self.stopped)


async def logs(cluster: KafkaCluster, tps: Iterable[TP]) -> dict[TP, LogRange]:
    """Where logs begin and end. Raises ClusterUnavailable or TopicMismatch."""
    reader = await cluster.page_reader(())
    try:
        return await _logs(cluster, reader, list(tps))
    finally:
        await reader.close()


async def browse(cluster: KafkaCluster, window: Window) -> ReadPage:
    """Read a page. Raises ClusterUnavailable, TopicMismatch, or PositionLost when the log's beginning keeps
    moving over what is read.
    """
    budget = _Budget(monotonic() + MOST_SECONDS, MOST_BYTES, MOST_OFFSETS)
    reader = await cluster.page_reader(() if window.key is None else (window.key,))
    try:
        try:
            return await _browse(cluster, reader, window, budget)
        except PositionLost:  # the oldest records have just expired
            return await _browse(cluster, reader, window, budget)
    finally:
        await reader.close()


async def _browse(cluster: KafkaCluster, reader: KafkaReader, window: Window, budget: _Budget) -> ReadPage:
    found = await _logs(cluster, reader, window.partitions)
    begins = {}
    for tp, log in found.items():
        place = window.places.get(tp, log.stable if window.backwards else log.begin)
        begins[tp] = min(max(place, log.begin), max(log.stable, log.begin))
    if window.since_ms is not None:
        since = await reader.ranges_since(window.partitions, window.since_ms)
        for tp, log in found.items():
            first = since[tp][0] if tp in since else log.stable
            begins[tp] = min(max(begins[tp], first), max(log.stable, log.begin))
    read = _backwards if window.backwards else _forwards
    parts, looked = await read(reader, window, begins, found, budget)
    if window.backwards and budget.stopped and not any(part.records for part in parts.values()):
        # Large records: a piece that was cut short is of no use. One of each partition, so that pages get on.
        small = _Budget(monotonic() + MOST_SECONDS, MOST_BYTES, MOST_OFFSETS)
        parts, more = await read(reader, window._replace(limit=1), begins, found, small)
        looked += more
    records, spans = page_of(parts, limit=window.limit, backwards=window.backwards)
    return ReadPage(records, spans, found, looked, budget.stopped)


async def _logs(cluster: KafkaCluster, reader: KafkaReader, tps: Iterable[TP]) -> dict[TP, LogRange]:
    wanted = list(tps)
    if not wanted:
        return {}
    since = int(time.time() * 1000) - _RECENT
    try:
        async with asyncio.timeout(READ):
            begins, ends, stable, recent = await asyncio.gather(
                cluster.begin_offsets(wanted),
                cluster.end_offsets(wanted),
                reader.stable_ends(wanted),
                reader.ranges_since(wanted, since),
            )
    except TimeoutError:
        raise ClusterUnavailable(
            f"Kafka did not tell within {READ:g} s where {len(wanted)} partitions begin and end"
        ) from None
    return {
        tp: LogRange(
            begins[tp],
            stable[tp],
            max(ends[tp], stable[tp]),
            recent[tp][0] if tp in recent else max(ends[tp], stable[tp]),
        )
        for tp in wanted
    }


async def _forwards(
    reader: KafkaReader,
    window: Window,
    begins: Mapping[TP, int],
    found: Mapping[TP, LogRange],
    budget: _Budget,
) -> tuple[dict[TP, ReadPart], int]:
    ranges = {tp: (first, found[tp].stable) for tp, first in begins.items()}
    parts = await _read(reader, window, ranges, budget, enough=window.limit)
    return parts, sum(part.behind - part.first for part in parts.values())


async def _backwards(
    reader: KafkaReader,
    window: Window,
    ends: Mapping[TP, int],
    found: Mapping[TP, LogRange],
    budget: _Budget,
) -> tuple[dict[TP, ReadPart], int]:
    parts = {tp: ReadPart([], end, end) for tp, end in ends.items()}
    size, looked = max(window.limit, _FIRST_PIECE if window.key is not None else 0), 0
    while not budget.is_spent():
        pieces = {
            tp: (max(found[tp].begin, part.first - size), part.first)
            for tp, part in parts.items()
            if len(part.records) < window.limit and part.first > found[tp].begin
        }
        if not pieces:
            break
        for tp, piece in (await _read(reader, window, pieces, budget)).items():
            looked += piece.behind - piece.first
            if piece.behind == pieces[tp][1]:  # one that is cut short leaves a gap behind it
                records = [*piece.records, *parts[tp].records][-window.limit :]
                whole = len(piece.records) + len(parts[tp].records) <= window.limit
                first = piece.first if whole else records[0].offset
                parts[tp] = ReadPart(records, first, parts[tp].behind)
        size *= _GROWS
    return parts, looked


async def _read(
    reader: KafkaReader,
    window: Window,
    ranges: Mapping[TP, tuple[int, int]],
    budget: _Budget,
    *,
    enough: int | None = None,
) -> dict[TP, ReadPart]:
    """All that is meant in the ranges, or of each the first `enough`; less when the budget is spent."""
    at = {tp: first for tp, (first, _) in ranges.items()}
    found: dict[TP, list[Record]] = {tp: [] for tp in ranges}
    left = {tp for tp, (first, end) in ranges.items() if first < end}
    await reader.assign({tp: at[tp] for tp in left})
    while left and not budget.is_spent():
        for batch in await reader.fetch(max_records=_AT_ONCE, timeout=_WAIT):
            tp, end = batch.tp, ranges[batch.tp][1]
            if tp not in left:
                continue
            budget.bytes -= sum(len(each.key or b"") + len(each.value or b"") for each in batch.records)
            budget.offsets -= batch.next_offset - at[tp]
            found[tp] += [each for each in batch.records if each.offset < end and window.means(each)]
            at[tp] = min(batch.next_offset, end)
            if enough is not None and len(found[tp]) >= enough:
                found[tp] = found[tp][:enough]
                at[tp] = found[tp][-1].offset + 1
                left.discard(tp)
            elif at[tp] >= end:
                left.discard(tp)
        await asyncio.sleep(0)
    return {tp: ReadPart(found[tp], first, at[tp]) for tp, (first, _) in ranges.items()}
