"""`python -m agents.gateway [ADDRESS]`: the sandbox gateway as a process, on loopback by default.

PORT is where it listens (8090; 0 for any free port), STEADFAUST_VAR the directory of its ledger (var).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from agents.gateway.server import GatewayServer, runner
from streams.system.listening import CannotListen, listen_at

LOOPBACK = "127.0.0.1"


async def serve(host: str, port: int, path: Path) -> None:
    """Serve until SIGTERM or Ctrl-C, then answer what is in flight and close the ledger."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    running = runner(GatewayServer(path).application())
    await running.setup()
    try:
        for bound in await listen_at(host, port):
            await web.SockSite(running, bound).start()
        _, bound = running.addresses[0][:2]
        sys.stdout.write(f"gateway: http://{host}:{bound} ledger {path}\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await running.cleanup()


def main() -> int:
    """Run the gateway; 0 after an orderly end, 1 when it cannot start."""
    host = sys.argv[1] if len(sys.argv) > 1 else LOOPBACK
    text = os.environ.get("PORT", "8090")
    path = Path(os.environ.get("STEADFAUST_VAR", "var"), "gateway", "ledger.sqlite")
    if not (text.isascii() and text.isdigit() and int(text) < 2**16):
        return _cannot_start(f"PORT is {text!r}, expected a number from 0 to 65535")
    try:
        uvloop.run(serve(host, int(text), path))
    except sqlite3.Error as error:
        return _cannot_start(f"cannot open the ledger {path}: {error}")
    except CannotListen as error:
        return _cannot_start(f"{error}; PORT=0 takes a free one")
    except OSError as error:
        return _cannot_start(f"cannot start on port {text} with the ledger {path}: {error}")
    return 0


def _cannot_start(why: str) -> int:
    sys.stderr.write(f"gateway: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
