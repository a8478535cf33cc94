"""`python -m agents.api`: the orders API as a process.

PORT is where it listens (8080; 0 for any free port); all else are the settings (docs/settings.md).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from agents.api.service import OrdersApi
from agents.settings import OrderSettings
from streams.errors import SteadfaustError
from streams.logs import configure_logs


async def serve(settings: OrderSettings, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C, then answer what is under way."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with OrdersApi(settings, lambda: port) as api:
        sys.stdout.write(f"orders API: {api.url}, its description: {api.url}/docs\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> int:
    """Run the API; 0 after an orderly end, 1 when it cannot start."""
    configure_logs(detached=True)
    text = os.environ.get("PORT", "8080")
    if not (text.isascii() and text.isdigit() and int(text) < 2**16):
        return _cannot_start(f"PORT is {text!r}, expected a number from 0 to 65535")
    try:
        uvloop.run(serve(OrderSettings.read_or_exit(), int(text)))
    except SteadfaustError as error:
        return _cannot_start(str(error))
    return 0


def _cannot_start(why: str) -> int:
    sys.stderr.write(f"error: the orders API cannot start: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
