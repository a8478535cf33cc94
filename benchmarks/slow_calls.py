"""One call in a hundred takes five seconds: what that costs the orders that made no such call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.gateway.cards import slow
from agents.messages import OrderPlaced
from benchmarks.latency import Latency
from benchmarks.orders import CUTS, OrderGround, milliseconds, order_ground
from benchmarks.sections import Context, ReportTable, Section
from demo.purchases import ExpectedOutcome, Purchase, outcome, purchases

_PER_SECOND = 60
_SLOW_EVERY = 100
_SLOW_MS = 5000
_NOTE = (
    f"Every {_SLOW_EVERY}th order's charge is answered after {_SLOW_MS / 1000:g} s; the latency is that of"
    " the others. In the last line `MAX_AHEAD` is 0: all of a partition number wait, as lanes did before."
)


@dataclass(frozen=True, slots=True)
class _Case:
    title: str
    slow: bool
    environment: dict[str, str]


_CASES = (
    _Case("no slow calls", False, {}),
    _Case("one call in a hundred takes 5 s", True, {}),
    _Case("the same, and all of a partition wait", True, {"STEADFAUST_MAX_AHEAD": "0"}),
)


def measure(context: Context) -> Section:
    """Each case with workers of its own, one after the other, `runs` times; of each the run in the middle."""
    found: dict[str, list[Latency]] = {case.title: [] for case in _CASES}
    for run in range(context.runs):
        for number, case in enumerate(_CASES):
            # Each with topics of its own: the orders are the same.
            latency = _of(replace(context, var=context.var / f"slow-{run}-{number}"), case)
            found[case.title].append(latency)
            context.say(f"{case.title}: {milliseconds(latency)}")
    middle = {title: sorted(each, key=lambda one: one.p99)[len(each) // 2] for title, each in found.items()}
    return _section(middle)


def _of(context: Context, case: _Case) -> Latency:
    # A single attempt has all the time of a call, so that the call is not repeated.
    more = {"STEADFAUST_GATEWAY_ATTEMPTS": "1", **case.environment}
    seconds = 8 if context.quick else 30
    bought = purchases(2 * _PER_SECOND * seconds)
    warm, measured = bought[: len(bought) // 2], bought[len(bought) // 2 :]
    cards = _slow_cards(measured) if case.slow else {}

    async def run(ground: OrderGround) -> Latency:
        async with ground:
            await ground.latency(warm, OrderPlaced, _PER_SECOND)
            return await ground.latency(measured, OrderPlaced, _PER_SECOND, cards)

    with order_ground(context, CUTS[0], more=more) as ground:
        return asyncio.run(run(ground))


def _slow_cards(bought: Sequence[Purchase]) -> dict[str, str]:
    """The card of every hundredth of the orders that pay well."""
    paying = [each.order_id for each in bought if outcome(each) is ExpectedOutcome.CONFIRMED]
    return dict.fromkeys(paying[::_SLOW_EVERY], slow(_SLOW_MS))


def _section(found: dict[str, Latency]) -> Section:
    quantiles = {title: milliseconds(latency) for title, latency in found.items()}
    rows = [[title, *(f"{value:,.0f}" for value in each.values())] for title, each in quantiles.items()]
    header = ("", *next(iter(quantiles.values())))
    table = ReportTable(
        f"From OrderPlaced to OrderConfirmed of orders without a slow call, at {_PER_SECOND} a second, in ms",
        header,
        rows,
    )
    return Section("Slow calls", [table], [_NOTE])
