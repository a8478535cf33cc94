"""How a worker fares when rows, ids, messages, partitions or lanes grow, and how fast it comes back."""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.growth import inbox, lanes, recovery, rows, sizes, start, takeover, workers
from benchmarks.growth.part import GrowthPlan, Part, measured
from benchmarks.sections import Context, Section
from streams.local import local_stack

SECTION = "growth"

_PARTS: dict[str, Part] = {
    "rows": rows.measure,
    "lanes": lanes.measure,
    "workers": workers.measure,
    "sizes": sizes.measure,
    "inbox": inbox.measure,
    "recovery": recovery.measure,
    "takeover": takeover.measure,
    "start": start.measure,
}
_NOTE = (
    "Events come in one burst, after a smaller one to warm up; the handler counts them by key, remembers"
    " their ids and passes each on. CPU is the workers', RocksDB's threads included. Peak MB is resident"
    " memory, sampled every 50 ms from the start of the process. Ratios are to the first line of the table,"
    " or to 4 partitions as 4 lanes; above 1 is better."
)


def measure(context: Context) -> Section:
    """Every part on one broker, one after the other."""
    # A new topic refuses its first records for a moment; aiokafka tells so for each partition, and retries.
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    with local_stack(context.var, tiered=True, say=context.say) as stack:
        plan = GrowthPlan(stack.bootstrap, context.var, context.runs, context.quick, context.say)
        found = {name: measured(f"{SECTION}: {name}", part, plan) for name, part in _PARTS.items()}
    numbers: dict[str, Any] = {}
    for each in found.values():
        numbers |= each.numbers
    return Section(
        "Growth",
        [each.table for each in found.values()],
        {SECTION: numbers},
        [_NOTE, *(note for each in found.values() for note in each.notes)],
    )
