"""The sweeper of claim checks: deletes objects that no row names and that are older than the grace period.

An object without a row is the orphan of an attempt that never committed, or its last reader has gone. A young
one may belong to a transaction that is still under way, so the grace period must be longer than the time from
a check-in to the row that names it, plus what the clocks here and in the store differ.

Names come from a changelog, in no order and by the million. They go into a Bloom filter of a fixed size: it
may take an orphan for referenced, which keeps it until a later sweep, and never the other way round. So
memory is bounded by the filter and one batch of orphans, whatever the number of names and objects.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from streams.model.claim import PREFIX
from streams.ports import Blob, Blobs
from streams.units import MIB

DEFAULT_GRACE = 24 * 3600.0
"""Seconds; commits take milliseconds, and a transaction is given up after a minute."""

DEFAULT_FILTER_BYTES = 16 * MIB
"""For 10 million names one orphan in 200 is kept until the next sweep, for 5 million one in 2000."""

_BATCH = 100
_OURS = re.compile(re.escape(PREFIX) + r"[^/]+/[^/]+-[0-9a-f]{64}")
_PROBES = struct.Struct("<4Q")


class Sweepable(StrEnum):
    """The kind of an object: all but orphans stay. A foreign one is not named as claim checks are."""

    REFERENCED = "referenced"
    YOUNG = "young"
    FOREIGN = "foreign"
    ORPHAN = "orphan"


def judge(blob: Blob, referenced: Container[str], before: float) -> Sweepable:
    """Decide on an object. `before` is when the grace period began, in seconds since the epoch."""
    if not _OURS.fullmatch(blob.name):
        return Sweepable.FOREIGN
    if blob.modified >= before:
        return Sweepable.YOUNG
    return Sweepable.REFERENCED if blob.name in referenced else Sweepable.ORPHAN


@dataclass(slots=True)
class ObjectTotals:
    """Objects, and their bytes."""

    objects: int = 0
    bytes: int = 0

    def count(self, blob: Blob) -> None:
        """One more."""
        self.objects += 1
        self.bytes += blob.size


@dataclass(slots=True)
class SweepReport:
    """How far a sweep is, and at its end what it found.

    Attributes:
        names: that rows refer to, as they were read: one may come more than once.
        found: objects by verdict.
        deleted: of the orphans; none in a dry run.
        spared: orphans that were written again, or had gone, when they were to be deleted.
        overlooked: chance that an orphan was taken for referenced; it is found by a later sweep.
    """

    names: int = 0
    found: dict[Sweepable, ObjectTotals] = field(
        default_factory=lambda: {verdict: ObjectTotals() for verdict in Sweepable}
    )
    deleted: ObjectTotals = field(default_factory=ObjectTotals)
    spared: ObjectTotals = field(default_factory=ObjectTotals)
    overlooked: float = 0.0


class NameFilter:
    """A Bloom filter: says of every name that was added that it is in, and of few others.

    With another salt it errs on others.
    """

    def __init__(self, size: int = DEFAULT_FILTER_BYTES, salt: bytes = b"") -> None:
        self._bits = bytearray(size)
        self._salt = salt

    def add(self, name: str) -> None:
        """Let it be in."""
        for position in self._positions(name):
            self._bits[position >> 3] |= 1 << (position & 7)

    def __contains__(self, name: object) -> bool:
        return all(self._bits[position >> 3] >> (position & 7) & 1 for position in self._positions(str(name)))

    def chance(self) -> float:
        """The chance that a name counts as added which was not."""
        ones = int.from_bytes(self._bits, "little").bit_count()
        return float((ones / (8 * len(self._bits))) ** 4)

    def _positions(self, name: str) -> list[int]:
        digest = blake2b(name.encode(errors="replace"), digest_size=_PROBES.size, salt=self._salt).digest()
        return [probe % (8 * len(self._bits)) for probe in _PROBES.unpack(digest)]


async def sweep(
    blobs: Blobs,
    referenced: AsyncIterator[str],
    *,
    now: Callable[[], float],
    grace: float = DEFAULT_GRACE,
    delete: bool = False,
    progress: Callable[[SweepReport], None] = lambda _report: None,
    filter_bytes: int = DEFAULT_FILTER_BYTES,
) -> SweepReport:
    """Look at every claim-check object, and delete the orphans if `delete` says so. It can be repeated.

    Args:
        blobs: the object store.
        referenced: the names that rows refer to, up to an end that was read after this was called; and
            those in messages that no lane has read yet, unless these are always younger than the grace
            period. A name may come more than once, or when its row has gone: that only keeps its object.
        now: seconds since the epoch.
        grace: seconds for which an object without a row is left alone.
        delete: False: a dry run, which only counts.
        progress: is given the report after each 10,000 names, and after each batch of orphans.
        filter_bytes: memory for the names.

    Raises:
        BlobsUnavailable: transient; what was deleted until then were orphans.
    """
    before = now() - grace  # taken first: what commits while names are read is young
    report = SweepReport()
    names = NameFilter(filter_bytes, salt=struct.pack("<d", before))
    await _add_all(names, referenced, report, progress)
    orphans: list[Blob] = []
    async for blob in blobs.scan(PREFIX):
        verdict = judge(blob, names, before)
        report.found[verdict].count(blob)
        if verdict is Sweepable.ORPHAN:
            orphans.append(blob)
        if len(orphans) == _BATCH:
            await _remove(blobs, orphans, before, report, delete=delete)
            orphans.clear()
            progress(report)
    await _remove(blobs, orphans, before, report, delete=delete)
    progress(report)
    return report


async def _add_all(
    names: NameFilter,
    referenced: AsyncIterator[str],
    report: SweepReport,
    progress: Callable[[SweepReport], None],
) -> None:
    async for name in referenced:
        names.add(name)
        report.names += 1
        if report.names % 10_000 == 0:
            progress(report)
    report.overlooked = names.chance()


async def _remove(
    blobs: Blobs, orphans: list[Blob], before: float, report: SweepReport, *, delete: bool
) -> None:
    """Delete a batch, unless this is a dry run: each is looked at again, since a late rerun of its message
    may have checked it in once more while we were reading.
    """
    if not delete or not orphans:
        return
    again = await asyncio.gather(*(blobs.head(orphan.name) for orphan in orphans))
    old = []
    for orphan, found in zip(orphans, again, strict=True):
        if found is None or found.modified >= before:
            report.spared.count(orphan)
        else:
            old.append(orphan)
    await blobs.delete([orphan.name for orphan in old])
    for orphan in old:
        report.deleted.count(orphan)
