"""What sagas cost: orders that one conducts, many of them in flight, timers, and what one writes."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.growth.part import Part, measured
from benchmarks.sagas import counts, flight, orders, timers
from benchmarks.sections import Context, Section

_PARTS: dict[str, Part] = {
    "flight": flight.measure,
    "timers": timers.measure,
    "counts": counts.measure,
}


def measure(context: Context) -> Section:
    """Orders on stacks of their own, with the gateway; every other part on one broker, in turn."""
    conducted = orders.measure(context)
    found = measured(replace(context, var=context.var / "parts"), "sagas", _PARTS)
    tables = [*conducted.tables, *(each.table for each in found)]
    return Section("Sagas", tables, [*conducted.notes, *(note for each in found for note in each.notes)])
