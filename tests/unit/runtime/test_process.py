"""How a worker's process ends when its services do not."""

import json
import subprocess
import sys

import pytest

from streams.host.process import EXIT_HUNG

pytestmark = pytest.mark.stack

HANGS = """
import asyncio
from streams.logs import configure_logs
from streams.host import process

async def never_ends():
    await asyncio.Event().wait()

async def main():
    process._end_hung_process()
    await never_ends()

configure_logs()
process.SHUTDOWN_LIMIT = 0.05
asyncio.run(main())
"""


def test_a_worker_that_hangs_says_what_it_waits_for() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, check=False)
    assert ended.returncode == EXIT_HUNG, ended.stderr
    said = json.loads(ended.stderr.splitlines()[-1])
    assert said["event"] == "worker_hung_at_shutdown"
    (waiting,) = said["waiting"]
    assert waiting.startswith("main:")
    assert " > never_ends:" in waiting
    assert " > Event.wait:" in waiting
