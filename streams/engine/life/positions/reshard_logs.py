"""Reads changelogs for a reshard, and makes digests of their rows to compare copies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain

from streams.errors import ChangelogDamaged
from streams.model.layout import INBOX
from streams.ports import TP, Cluster, Damaged, Record

#: Maximum records of logs that are read together. Their keys are all in memory.
_AT_ONCE = 2_000_000
_FETCH_RECORDS = 2000


class Logs:
    """Reads changelogs. `inboxes` are the inbox changelogs, which are not compacted."""

    def __init__(self, cluster: Cluster, inboxes: Collection[str]) -> None:
        self._cluster = cluster
        self._inboxes = inboxes

    async def ranges(self, tps: Iterable[TP]) -> dict[TP, range]:
        """The range from the begin to the end offset of each log."""
        begins, ends = await self._cluster.begin_offsets(tps), await self._cluster.end_offsets(tps)
        return {tp: range(begin, ends[tp]) for tp, begin in begins.items()}

    async def rows(
        self, spans: Mapping[TP, range], whole: Mapping[TP, range]
    ) -> AsyncIterator[tuple[TP, Record]]:
        """The records in these spans that are the newest of their keys, without tombstones. For an inbox, all
        records. `whole` has the whole range of each log, which is searched for the newest records.
        """
        compacted = {tp: whole[tp] for tp in spans if tp.topic not in self._inboxes}
        newest: dict[TP, dict[bytes, int]] = {tp: {} for tp in compacted}
        async for tp, record in self.read(compacted):
            if record.value is None:
                newest[tp].pop(record.key or b"", None)
            else:
                newest[tp][record.key or b""] = record.offset
        async for tp, record in self.read(spans):
            if tp not in newest or newest[tp].get(record.key or b"") == record.offset:
                yield tp, record

    async def read(self, spans: Mapping[TP, range]) -> AsyncIterator[tuple[TP, Record]]:
        """The records of these spans, in order within each partition. Raises ChangelogDamaged."""
        todo = {tp: span.stop for tp, span in spans.items() if span}
        if not todo:
            return
        reader = await self._cluster.reader()
        try:
            await reader.assign({tp: spans[tp].start for tp in todo})
            while any(reader.position(tp) < end for tp, end in todo.items()):
                for batch in await reader.fetch(max_records=_FETCH_RECORDS, timeout=0.5):
                    for record in batch.records:
                        if isinstance(record, Damaged):
                            what = f'{record.why}. See docs/operating.md, "A changelog is damaged"'
                            raise ChangelogDamaged(what)
                        if record.offset < todo[batch.tp]:
                            yield batch.tp, record
        finally:
            await reader.close()


class Digests:
    """Digests of rows by partition and key, and of an inbox's records in order."""

    def __init__(self) -> None:
        self._rows: dict[tuple[TP, bytes], bytes] = {}
        self._records: dict[TP, bytearray] = {}

    def add(self, table: str, tp: TP, key: bytes | None, value: bytes | None) -> None:
        """Add a row, or a record of an inbox."""
        digest = blake2b(value or b"", digest_size=8).digest()
        if table == INBOX:
            self._records.setdefault(tp, bytearray()).extend(digest)
        else:
            self._rows[tp, key or b""] = digest

    def first_difference(self, wanted: Digests) -> TP | None:
        """A partition that differs from `wanted`; None if all are equal. An inbox may have extra records at
        its beginning, because their originals may have expired since they were copied.
        """
        rows = (tp for (tp, _), _ in self._rows.items() ^ wanted._rows.items())
        records = (
            tp
            for tp, digests in wanted._records.items()
            if not self._records.get(tp, bytearray()).endswith(digests)
        )
        return next(chain(rows, records), None)


def later(span: range, start: int) -> range:
    """The part of a span from offset `start` on."""
    return range(max(span.start, start), span.stop)


def groups(spans: Mapping[TP, range]) -> Iterator[dict[TP, range]]:
    """Groups of logs to read together. A log with more than `_AT_ONCE` records gets a group of its own."""
    group: dict[TP, range] = {}
    for tp, span in spans.items():
        if group and sum(map(len, group.values())) + len(span) > _AT_ONCE:
            yield group
            group = {}
        group[tp] = span
    yield group
