"""Write the tables of sections into report.json and benchmarks/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.machine import in_words
from benchmarks.sections import NotMeasured, ReportTable, Section

_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How figures came about.

    Attributes:
        machine: as `describe_machine` says.
        day: of the measurement, as in `2026-01-31`.
        runs: each figure is the median of so many.
        quick: few events; the figures are rough.
    """

    machine: dict[str, str | int | float]
    day: str
    runs: int
    quick: bool


def merge(path: Path, name: str, section: Section, circumstances: Circumstances) -> dict[str, Any]:
    """Put a section's tables into the report, beside those of other sections; returns the whole report."""
    report = read(path)
    measured = {
        "day": circumstances.day,
        "runs": circumstances.runs,
        "quick": circumstances.quick,
        "machine": circumstances.machine,
    }
    report[name] = {table.title: [_figures(table, row) for row in table.rows] for table in section.tables}
    report["measured"] = {**report.get("measured", {}), name: measured}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    return report


def _figures(table: ReportTable, row: Sequence[str]) -> dict[str, str | float]:
    """A row by the names of its columns; figures as numbers."""
    return {name or "name": _figure(cell) for name, cell in zip(table.columns, row, strict=True)}


def _figure(cell: str) -> str | float:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return cell


def read(path: Path) -> dict[str, Any]:
    """The report so far; empty when there is none. Raises NotMeasured when the file is something else."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise NotMeasured(f"{path} is no report ({error}): remove it") from error
    return found


def put_into(text: str, name: str, content: str) -> str:
    """The text with the content between the section's markers replaced.

    Raises:
        NotMeasured: the markers are not there.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise NotMeasured(f"benchmarks/README.md has no place for {name}: write {begin} and {end} into it")
    return f"{head}{begin}\n{content}\n{end}{tail}"


def markdown(section: Section, circumstances: Circumstances) -> str:
    """A section as Markdown."""
    plural = "s" if circumstances.runs != 1 else ""
    blocks = [f"## {section.title}"]
    blocks += ["\n".join([f"**{table.title}**", "", *_markdown_rows(table)]) for table in section.tables]
    measured = f"Measured {circumstances.day}, {circumstances.runs} run{plural}"
    notes = [*section.notes, f"{measured}: {in_words(circumstances.machine)}"]
    blocks += (fill(note, _WIDTH, break_long_words=False, break_on_hyphens=False) for note in notes)
    return "\n\n".join(blocks)


def _markdown_rows(table: ReportTable) -> Iterator[str]:
    yield _cells(table.columns)
    yield _cells(["---", *("---:" for _ in table.columns[1:])])
    yield from map(_cells, table.rows)


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_json(report: Mapping[str, Any]) -> str:
    """The report for other programs."""
    return json.dumps(report, indent=2)
