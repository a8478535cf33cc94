"""Findings: one line of a verdict each, red when anything is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

_SHOWN = 3


class Finding(msgspec.Struct, frozen=True):
    """One line of the verdict: what was checked, whether it holds, and the figures."""

    name: str
    passed: bool
    says: str


def finding(name: str, wrong: Mapping[str, Sequence[str]], says: str) -> Finding:
    """Red when anything is wrong; `wrong` has the cases of each kind, of which the first few are shown."""
    faults = [f"{len(cases):,} {what} ({_some(cases)})" for what, cases in wrong.items() if cases]
    return Finding(name, not faults, "; ".join([says, *faults]))


def _some(cases: Iterable[str]) -> str:
    shown = list(cases)
    more = ["..."] if len(shown) > _SHOWN else []
    return ", ".join([*shown[:_SHOWN], *more])
