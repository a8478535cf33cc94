"""The demo's report at its end, on the screen and as a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.verdict import Verdict


class DemoReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run of the demo.

    Attributes:
        warm_up: orders that were placed first, and are not in seconds and rate.
        seconds: from the first order placed after those to the last one settled.
        under_way: how long an order was under way, from when it was placed to when it was seen to be settled:
            half of them at most, and 99 of a hundred, in seconds.
        killed: pids of workers that the demo killed on request.
        relay: who brought the outbox to Kafka, poll or cdc.
        died: how many workers ended by themselves.
        error: why the run was given up; there is no verdict then.
    """

    passed: bool
    orders: int
    placed: int
    settled: int
    workers: int
    choreography: str
    seconds: float
    orders_per_second: float
    relay: str = "poll"
    warm_up: int = 0
    under_way: tuple[float, float] = (0.0, 0.0)
    killed: list[int] = []
    restarted: bool = False
    died: int = 0
    error: str = ""
    verdict: Verdict | None = None

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def show(report: DemoReport, console: Console) -> None:
    """The closing table, then the checks."""
    if report.verdict is None:
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in _rows(report, report.verdict):
        table.add_row(name, value)
    console.print()
    console.print(table)
    console.print()
    for finding in report.verdict.findings:
        mark = Text("pass  ", "green") if finding.passed else Text("FAIL  ", "bold red")
        console.print(mark + Text(finding.name), soft_wrap=True)
        console.print(Text(f"      {finding.says}", "dim"), soft_wrap=True)
    console.print()


def _rows(report: DemoReport, verdict: Verdict) -> list[tuple[str, str]]:
    found = verdict.figures
    return [
        ("placed", f"{report.placed:,}"),
        ("relayed by", report.relay),
        ("confirmed", f"{found.confirmed:,}"),
        *((f"sagas {status}", f"{count:,}") for status, count in sorted(found.sagas.items())),
        *((f"cancelled, {reason}", f"{count:,}") for reason, count in sorted(found.cancelled.items())),
        ("value of confirmed orders", _money(found.confirmed_cents)),
        ("captured", _money(found.captured_cents)),
        ("refunded", _money(found.refunded_cents)),
        ("pieces received", f"{found.received:,}"),
        ("pieces on hand", f"{found.on_hand:,}"),
        ("pieces shipped", f"{found.shipped:,}"),
        *((f"postponed, {tier}", f"{count:,}") for tier, count in sorted(found.put_off.items())),
        *((f"dead letters, {error}", f"{count:,}") for error, count in sorted(found.dead_letters.items())),
        ("payloads by reference", f"{found.by_reference:,}"),
        ("  bytes of them", f"{found.by_reference_bytes:,}"),
        ("seconds, median in the system", f"{report.under_way[0]:.1f}"),
        ("seconds, 99 % in the system", f"{report.under_way[1]:.1f}"),
        (f"seconds, after {report.warm_up:,} orders to warm up", f"{report.seconds:.1f}"),
        ("orders/s", f"{report.orders_per_second:,.0f}"),
    ]


def _money(cents: int) -> str:
    return f"{cents // 100:,}.{cents % 100:02d}"
