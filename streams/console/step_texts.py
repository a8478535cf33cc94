"""Texts for the steps of a story."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streams.console.formatting import leaves
from streams.control.history.timeline_answers import RowChange, TimelineEntry

#: Characters of a field's change that is named.
_SHOWN = 60


def error_text(failure: Mapping[str, str]) -> str:
    """The error of a retry or a dead letter."""
    return ": ".join(failure[name] for name in ("error-type", "error-message") if failure.get(name))


def attempt_text(number: int, entry: TimelineEntry) -> str:
    """An attempt that failed, or the last one."""
    if entry.kind == "dead letter":
        return f"gave up after {number} attempt{'' if number == 1 else 's'}: {error_text(entry.failure)}"
    return f"attempt {number} failed: {error_text(entry.failure)}"


def sent_text(entries: Iterable[TimelineEntry]) -> str:
    """Which messages a step sent; empty for none."""
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.kind != "transition":
            counts[entry.type] = counts.get(entry.type, 0) + 1
    names = [name if count == 1 else f"{count} {name}" for name, count in counts.items()]
    return f"sent {', '.join(names)}" if names else ""


def changed_texts(changes: Sequence[RowChange]) -> list[str]:
    """Text of the changes that a step made in rows."""
    new = [each.table for each in changes if each.is_first and not each.removed]
    texts = [f"new row in {', '.join(dict.fromkeys(new))}"] if new else []
    for change in changes:
        if change.removed:
            texts.append(f"row of {change.table} removed")
        elif not change.is_first and (fields := _fields(change)):
            texts.append(f"{change.table}: {', '.join(fields)}")
    return texts


def _fields(change: RowChange) -> list[str]:
    """The short fields of a change, at most two."""
    texts = []
    for name, before, after in leaves(change.before, change.after):
        if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) < _SHOWN:
            texts.append(f"{name} {before} → {after}" if before else f"{name} {after}")
    return texts[:2]
