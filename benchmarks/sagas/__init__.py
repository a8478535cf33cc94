"""What sagas cost: orders that one conducts, many of them in flight, timers, and what one writes."""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.growth.part import GrowthPlan, Part, measured
from benchmarks.sagas import counts, flight, orders, timers
from benchmarks.sections import Context, Section
from streams.local import local_stack

SECTION = "sagas"

_PARTS: dict[str, Part] = {
    "flight": flight.measure,
    "timers": timers.measure,
    "counts": counts.measure,
}


def measure(context: Context) -> Section:
    """Orders on stacks of their own, with the gateway; every other part on one broker, in turn."""
    # A new topic refuses its first records for a moment; aiokafka tells so for each partition, and retries.
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    conducted = orders.measure(context)
    with local_stack(context.var / "parts", tiered=True, say=context.say) as stack:
        plan = GrowthPlan(stack.bootstrap, context.var / "parts", context.runs, context.quick, context.say)
        found = [measured(f"{SECTION}: {name}", part, plan) for name, part in _PARTS.items()]
    numbers: dict[str, Any] = dict(conducted.numbers)
    for each in found:
        numbers |= each.numbers
    tables = [*conducted.tables, *(each.table for each in found)]
    notes = [*conducted.notes, *(note for each in found for note in each.notes)]
    return Section("Sagas", tables, {SECTION: numbers}, notes)
