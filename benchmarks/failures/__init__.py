"""What failures cost: those that are tried again, a poisoned key, an outside that is down, dead letters."""

from __future__ import annotations

from benchmarks.failures import letters, others, sustained
from benchmarks.growth.part import Part, measured
from benchmarks.sections import Context, Section

_PARTS: dict[str, Part] = {
    "sustained": sustained.measure,
    "others": others.measure,
    "letters": letters.measure,
}
_NOTE = "Ratios are the medians of those to the first line in the same round. The load shares the cores."


def measure(context: Context) -> Section:
    """Every part on one broker, one after the other."""
    found = measured(context, "failures", _PARTS)
    notes = [_NOTE, *(note for each in found for note in each.notes)]
    return Section("Failures", [each.table for each in found], notes)
