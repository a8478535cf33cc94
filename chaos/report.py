"""The report of a run of the faults, as JSON and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from textwrap import fill

import msgspec

from chaos.check import CheckReport as Checked
from chaos.rig.records import RunRecords

_WIDTH = 120


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run.

    Attributes:
        problems: what the driver itself found wrong; empty when nothing.
        left_out: faults for which there was no load left, because earlier ones took long.
        seconds: how long everything took.
        sent: messages that the client sent; `again`, of those, because the cluster had not taken them.
        checked: what the checker says; None when there was nothing to look at.
    """

    problems: list[str]
    left_out: int
    seconds: float
    sent: int
    again: int
    run: RunRecords
    checked: Checked | None

    @property
    def passed(self) -> bool:
        """Whether the driver found no problem and the checker none."""
        return not self.problems and self.checked is not None and self.checked.passed


def encode(report: RunReport) -> bytes:
    """As JSON, with `passed`."""
    fields = {"passed": report.passed, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def markdown(report: RunReport) -> str:
    """The verdict, the findings, and every fault, as a document."""
    lines = [
        f"# Chaos run with seed {report.run.seed}",
        "",
        verdict(report),
        "",
        _load(report),
        "",
        "## Faults",
        "",
        "| Kind | Times |",
        "|---|---|",
        *(f"| `{kind}` | {count} |" for kind, count in sorted(_kinds(report.run).items())),
        "",
        "## Checked",
        "",
    ]
    lines += [
        _item(f"**{'pass' if finding.passed else 'FAIL'}: {finding.name}.** {finding.says}")
        for finding in (report.checked.findings if report.checked else ())
    ]
    lines += [_item(f"**FAIL:** {problem}") for problem in report.problems]
    lines += [
        "",
        "## Longest stalls",
        "",
        "| Fault | Lane | Seconds | No other fault near |",
        "|---|---|---|---|",
    ]
    lines += list(_longest_stalls(report))
    lines += ["", "## Every fault", ""]
    for at, kind, target, healed, confirmed in _rows(report.run):
        after = "never healed" if healed == "never" else f"healed after {healed}"
        lines.append(_item(f"{at}: `{kind}` of {target}, {after}: {confirmed}"))
    return "\n".join([*lines, ""])


def _item(text: str) -> str:
    """A list item, wrapped to the width of the pages."""
    return fill(text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _rows(run: RunRecords) -> Iterator[tuple[str, ...]]:
    for fault in run.faults:
        healed = "never" if fault.ended is None else f"{fault.ended - fault.began:.1f} s"
        at = f"{fault.began - run.load[0]:.0f} s"
        yield at, fault.kind, fault.target, healed, fault.confirmed or "NOT CONFIRMED"


def _load(report: RunReport) -> str:
    run = report.run
    span = run.load[1] - run.load[0]
    left_out = f" ({report.left_out} more were planned)" if report.left_out else ""
    return (
        f"{run.orders:,} orders and {run.notes:,} notes in {span:.0f} s; {report.sent:,} messages sent,"
        f" {report.again:,} of them because the cluster had not taken them; {len(run.faults)} faults of"
        f" {len(_kinds(run))} kinds{left_out}; {len(run.workers)} worker processes on 3 brokers"
    )


def verdict(report: RunReport) -> str:
    """Whether it passed, in a line; how to repeat it if it did not."""
    if report.passed:
        return f"passed: seed {report.run.seed}, {report.seconds:.0f} s in all"
    return f"FAILED: seed {report.run.seed}, {report.seconds:.0f} s in all; SEED={report.run.seed} repeats it"


def _kinds(run: RunRecords) -> Counter[str]:
    return Counter(fault.kind for fault in run.faults)


def _longest_stalls(report: RunReport) -> Iterator[str]:
    found = report.checked.stalls if report.checked else []
    longest = {stall.kind: stall for stall in sorted(found, key=lambda each: each.seconds)}
    for kind, stall in sorted(longest.items()):
        alone = "yes" if stall.alone else "no"
        yield f"| {f'`{kind}`' if kind else 'none'} | {stall.lane} | {stall.seconds:.1f} | {alone} |"
