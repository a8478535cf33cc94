"""What the comparison says at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.table import Table

from chaos.counting.checker import Findings
from chaos.counting.contestants import Contestant
from chaos.counting.trial import Result, TrialPlan

_UNKNOWN = "-"


class ComparisonReport(msgspec.Struct, frozen=True):
    """The comparison. `passed`: ours was right, and every fault happened."""

    passed: bool
    seed: int
    events: int
    seconds: float
    results: list[Result]


def report(
    contestants: Sequence[Contestant], results: list[Result], *, seed: int, plan: TrialPlan
) -> ComparisonReport:
    """Whether it passed, with all that it rests on. What the others did is told, and fails nothing."""
    ours = {contestant.name for contestant in contestants if contestant.ours}
    confirmed = all(fault.confirmed for result in results for fault in result.faults)
    right = all(_is_right(result) for result in results if result.name in ours)
    return ComparisonReport(confirmed and right, seed, plan.events, plan.seconds, results)


def table(contestants: Sequence[Contestant], results: Sequence[Result]) -> Table:
    """All side by side."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("")
    for contestant in contestants:
        shown.add_column(contestant.says, justify="right")
    for name, cell in _ROWS.items():
        shown.add_row(name, *(cell(result) for result in results))
    return shown


def _is_right(result: Result) -> bool:
    return result.findings is not None and result.findings.right


def _found(number: Callable[[Findings], int]) -> Callable[[Result], str]:
    return lambda result: _UNKNOWN if result.findings is None else f"{number(result.findings):,}"


def _faults(result: Result) -> str:
    return f"{sum(bool(fault.confirmed) for fault in result.faults)} of {len(result.faults)}"


_ROWS: Mapping[str, Callable[[Result], str]] = {
    "lost events": _found(lambda found: found.lost),
    "events not handled in the end": _found(lambda found: found.left),
    "doubled ids": _found(lambda found: found.doubled),
    "outputs of nothing": _found(lambda found: found.invented),
    "wrong rows": _found(lambda found: found.wrong_rows),
    "longest stall, s": lambda result: f"{result.stall:.1f}",
    "self-crashes": lambda result: str(result.crashes),
    "hung workers": lambda result: str(result.hung),
    "all out after, s": lambda result: "never" if result.finished is None else f"{result.finished:.1f}",
    "faults confirmed": _faults,
}
