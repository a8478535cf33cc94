"""`python -m chaos.check`: the independent checker of a chaos run, a process of its own.

It knows the input, the topics, the gateway's ledger, the tables' contents on the workers' disks, and what the
driver says that it did; nothing of what workers think of themselves. The workers must have ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import aiohttp
import asyncpg
import msgspec
import typer
from aiokafka.errors import KafkaError
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException

from chaos.evidence.evidence import gather
from chaos.judges.findings import findings
from chaos.judges.stalls import CommitGap, stalls
from demo.findings import Finding
from demo.purchases import purchases
from streams.errors import SteadfaustError

#: What keeps the checker from looking at something.
_UNSEEN = (
    SteadfaustError,
    KafkaError,
    KafkaException,
    aiohttp.ClientError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    BotoCoreError,
    ClientError,
    msgspec.MsgspecError,
    OSError,
)


class CheckReport(msgspec.Struct, frozen=True):
    """What the checker says, as JSON. `seconds` is how long it took to look and to judge."""

    passed: bool
    findings: list[Finding]
    stalls: list[CommitGap]
    seconds: float


async def check(var: Path) -> CheckReport:
    """Gather the evidence of the run in this directory and judge it."""
    began = time.monotonic()
    evidence = await gather(var)
    found = findings(purchases(evidence.run.orders), evidence)
    return CheckReport(
        all(each.passed for each in found),
        found,
        stalls(evidence.run, evidence.commits),
        round(time.monotonic() - began, 1),
    )


def command(
    var: Annotated[Path, typer.Option(help="The directory of the run.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a run; exit status 1 when something does not hold, 2 when it could not be looked at."""
    try:
        report = asyncio.run(check(var))
    except _UNSEEN as error:
        sys.stderr.write(f"error: the check cannot look: {type(error).__name__}: {error}\n")
        raise typer.Exit(2) from error
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        for each in report.findings:
            print(f"{'pass' if each.passed else 'FAIL'}  {each.name}: {each.says}")
        print(f"checked in {report.seconds:.1f} s")
    raise typer.Exit(0 if report.passed else 1)


if __name__ == "__main__":
    typer.run(command)
