"""What failures cost: those that are tried again, a poisoned key, an outside that is down, dead letters."""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.failures import letters, others, sustained
from benchmarks.growth.part import GrowthPlan, Part, measured
from benchmarks.sections import Context, Section
from streams.local import local_stack

SECTION = "failures"

_PARTS: dict[str, Part] = {
    "sustained": sustained.measure,
    "others": others.measure,
    "letters": letters.measure,
}
_NOTE = "Ratios are the medians of those to the first line in the same round. The load shares the cores."


def measure(context: Context) -> Section:
    """Every part on one broker, one after the other."""
    # A new topic refuses its first records for a moment; aiokafka tells so for each partition, and retries.
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    with local_stack(context.var, tiered=True, say=context.say) as stack:
        plan = GrowthPlan(stack.bootstrap, context.var, context.runs, context.quick, context.say)
        found = [measured(f"{SECTION}: {name}", part, plan) for name, part in _PARTS.items()]
    numbers: dict[str, Any] = {}
    for each in found:
        numbers |= each.numbers
    notes = [_NOTE, *(note for each in found for note in each.notes)]
    return Section("Failures", [each.table for each in found], {SECTION: numbers}, notes)
