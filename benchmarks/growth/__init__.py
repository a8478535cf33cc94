"""How a worker fares when rows, ids, partitions or lanes grow, and how fast it comes back."""

from __future__ import annotations

from benchmarks.growth import bursts, opening, takeover
from benchmarks.growth.part import Part, measured
from benchmarks.sections import Context, Section

_PARTS: dict[str, Part] = {
    "rows": bursts.rows,
    "lanes": bursts.lanes,
    "workers": bursts.workers,
    "inbox": bursts.ids,
    "recovery": opening.after_a_lost_disk,
    "takeover": takeover.measure,
    "start": opening.of_a_worker,
}
_NOTE = (
    "Events come in one burst, after a smaller one to warm up; the handler counts them by key, remembers"
    " their ids and passes each on. CPU is the workers', RocksDB's threads included. Peak MB is resident"
    " memory, sampled every 50 ms from the start of the process. Ratios are to the first line of the table,"
    " or to 4 partitions as 4 lanes; above 1 is better."
)


def measure(context: Context) -> Section:
    """Every part on one broker, one after the other."""
    found = measured(context, "growth", _PARTS)
    notes = [_NOTE, *(note for each in found for note in each.notes)]
    return Section("Growth", [each.table for each in found], notes)
