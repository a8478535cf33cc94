"""How many charges a second the sandbox gateway answers: `python -m benchmarks.gateway [charges] [at once]`.

One client process drives one gateway process over the loopback; a charge is on disk before it is answered.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import psutil
import uvloop

from agents.gateway.cards import ACCEPTED
from agents.gateway.client import HttpGateway
from agents.gateway.testing import GatewayProcess


async def drive(url: str, charges: int, at_once: int) -> list[float]:
    """The seconds each charge took, in order."""
    numbers = count()
    took: list[float] = []

    async def caller(gateway: HttpGateway) -> None:
        while (number := next(numbers)) < charges:
            started = time.perf_counter()
            await gateway.charge(operation=f"capture:order-{number}", cents=100 + number, card=ACCEPTED)
            took.append(time.perf_counter() - started)

    async with HttpGateway(url, connections=at_once) as gateway:
        await asyncio.gather(*(caller(gateway) for _ in range(at_once)))
    return took


def main() -> None:
    """Drive it and print the rate, the latency and the CPU time of both sides."""
    arguments = [int(text) for text in sys.argv[1:]]
    charges, at_once = (arguments + [20_000, 64][len(arguments) :])[:2]
    with tempfile.TemporaryDirectory() as var, GatewayProcess(Path(var)) as process:
        started = time.perf_counter()
        took = sorted(uvloop.run(drive(process.url, charges, at_once)))
        seconds = time.perf_counter() - started
        cpu = psutil.Process(process.pid).cpu_times()
        median, p99 = took[len(took) // 2] * 1000, took[len(took) * 99 // 100] * 1000
        print(
            f"{charges} charges, {at_once} at once: {charges / seconds:.0f}/s, median {median:.1f} ms, "
            f"p99 {p99:.1f} ms, gateway CPU {cpu.user + cpu.system:.1f} s of {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
