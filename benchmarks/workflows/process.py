"""Programs of the engines as processes: workers and servers that are watched, and senders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers.shop import READY
from benchmarks.sections import NotMeasured
from benchmarks.worker_process import BenchmarkWorker
from demo.workers import PROJECT

_READY_WITHIN = 90.0

#: The project's modules for another Python, which has none of our packages; not the compiled ones.
FOUND_IN_PROJECT = {"PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": ""}


class PeerProcess(BenchmarkWorker):
    """A program that is none of ours, from entering to leaving a `with`."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: Path) -> None:
        super().__init__("", settings, log)
        self._command = list(command)

    async def ready(self) -> None:
        """Wait until it says that it takes work. Raises NotMeasured when it does not."""
        await self.until(lambda: READY in self.log.read_text().split(), "it is ready", within=_READY_WITHIN)


@asynccontextmanager
async def sending(command: Sequence[str], environment: Mapping[str, str], log: Path) -> AsyncIterator[float]:
    """A sender for the length of the block, which yields when its first order was due, on the clock of
    `time.time`, and waits for the rest.

    Raises:
        NotMeasured: it failed.
    """
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(environment), stdout=asyncio.subprocess.PIPE, stderr=errors
        )
    try:
        yield await _began(process, log)
        if await process.wait():
            raise NotMeasured(f"the sender failed: see {log}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _began(process: asyncio.subprocess.Process, log: Path) -> float:
    """When its first order was due, as it says in a line of its own. Raises NotMeasured."""
    while process.stdout is not None and (line := await process.stdout.readline()):
        if line.startswith(b'{"began"'):
            return float(json.loads(line)["began"])
    raise NotMeasured(f"the sender ended before its first order: see {log}")
