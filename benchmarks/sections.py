"""What a section of the benchmarks is given, and what it gives back.

A section is a module with a name and one function:

    SECTION = "growth"

    def measure(context: Context) -> Section: ...

The command makes the context, writes the report and the README; a section measures, and says what it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from streams.errors import SteadfaustError


class NotMeasured(SteadfaustError):
    """A figure could not be had or would be wrong: events are missing, a program ended, a download failed."""


@dataclass(frozen=True, slots=True)
class Context:
    """How to measure.

    Attributes:
        var: an absolute, empty directory for this section alone; its local stack, stores and logs go there.
        runs: how often each thing is measured; runs alternate, tables have medians.
        quick: about a quarter of the events, rows or seconds: shows that it works, figures are rough.
        say: takes a line of progress.
    """

    var: Path
    runs: int
    quick: bool
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table as a reader sees it.

    Attributes:
        title: one line above it.
        columns: the heads; the first column is text, the others are aligned as numbers.
        rows: as many cells as columns, ready to print (`"43,059"`, `"1.0"`, `"-"`).
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """What a section found.

    Attributes:
        title: its heading in benchmarks/README.md.
        tables: in the order of reading.
        notes: sentences under the tables: what is compared, what was not measured and why.
    """

    title: str
    tables: Sequence[ReportTable]
    notes: Sequence[str] = ()


class SectionModule(Protocol):
    """A module that measures a section."""

    SECTION: str

    def measure(self, context: Context) -> Section:
        """Measure it.

        Raises:
            NotMeasured: or another SteadfaustError; the sections measured before stay in the report.
        """
