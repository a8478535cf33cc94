"""`python -m demo.check`: the independent check, a process of its own.

It knows the input file, the gateway's ledger, the topics and the orders in PostgreSQL, and nothing of the
workers.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agents.settings import OrderSettings
from demo.evidence import gather, packed
from demo.failures import references
from demo.postgres import judge_postgres, look
from demo.purchases import ROWS, purchases
from demo.verdict import Verdict, judge
from streams.errors import SteadfaustError
from streams.s3 import claim_checks

#: Seconds for releases and refunds to follow the last cancellation, even past a worker's session timeout.
QUIET_WITHIN = 60.0


async def check(
    settings: OrderSettings, orders: int, *, attached: float = 0.0, within: float = QUIET_WITHIN
) -> Verdict:
    """Gather the evidence and judge it."""
    evidence = await gather(settings.brokers(), settings.gateway(), settings.app_id, within=within)
    if attached:
        async with claim_checks(settings) as claims:
            evidence.packed = await packed(settings.brokers(), claims)
            if claims is not None:
                evidence.references = await references(settings.brokers(), claims)
    await look(settings, evidence, orders=orders, within=within)
    verdict = judge(purchases(orders), evidence, attached=attached, trouble=True, sagas=True)
    return Verdict([*verdict.findings, judge_postgres(purchases(orders), evidence)], verdict.figures)


def command(
    var: Annotated[Path, typer.Option(help="The directory of the stack that the orders went through.")],
    orders: Annotated[int, typer.Option(min=1, max=ROWS, help="How many orders were placed.")],
    *,
    attached: Annotated[float, typer.Option(help="The share of them that came with files.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Check every order, cent and unit; exit status 1 when something does not add up."""
    try:
        verdict = asyncio.run(check(OrderSettings(var=var), orders, attached=attached))
    except (SteadfaustError, OSError) as error:
        sys.stderr.write(f"error: the check cannot look: {error}\n")
        raise typer.Exit(2) from error
    if as_json:
        print(msgspec.json.encode(verdict).decode())
    else:
        for finding in verdict.findings:
            print(f"{'pass' if finding.passed else 'FAIL'}  {finding.name}: {finding.says}")
    raise typer.Exit(0 if verdict.passed else 1)


if __name__ == "__main__":
    typer.run(command)
