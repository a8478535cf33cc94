"""The database edge of a demo: the tables, a relay of the outbox and the orders API, each its own process.

Two APIs, because half of the orders are to go either way: one places them, the other submits them.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from agents.api.testing import ApiProcess
from agents.settings import OrderSettings
from demo.workers import PROJECT
from streams.postgres import LIBRARY, MigrationSet, migrate
from streams.postgres.database import connect

_RELAY = [str(Path(sys.executable).parent / "steadfaust"), "outbox", "relay"]
_MIGRATIONS = MigrationSet("orders", PROJECT / "agents" / "api" / "migrations")
_ENDS_WITHIN = 20.0


class Urls(NamedTuple):
    """Where the APIs are, by the way of their orders."""

    placed: str
    submitted: str


class DemoEdge:
    """Starts all of it, and ends each by its pid when left.

    Attributes:
        urls: where the APIs are, once it is entered.
    """

    urls: Urls

    def __init__(self, var: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._var = var
        self._environment = environment
        self._say = say
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _open(self) -> None:
        logs = self._var / "log"
        logs.mkdir(parents=True, exist_ok=True)
        asyncio.run(make_tables(OrderSettings(var=self._var).postgres()))
        with (logs / "relay.log").open("ab") as log:
            relay = subprocess.Popen(
                _RELAY,
                cwd=PROJECT,
                env={**self._environment, "PORT": "0"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._opened.callback(_end, relay)
        enter = self._opened.enter_context
        placed = enter(ApiProcess(logs / "api-placed.log", self._given("placed", projection="true")))
        submitted = enter(
            ApiProcess(logs / "api-submitted.log", self._given("submitted", projection="false"))
        )
        self.urls = Urls(placed.url, submitted.url)
        self._say(f"the orders API answers on {placed.url} and {submitted.url}")

    def _given(self, way: str, *, projection: str) -> dict[str, str]:
        """One of them writes the ends of orders into PostgreSQL; more would share that."""
        own = {"STEADFAUST_ORDERS_WAY": way, "STEADFAUST_API_PROJECTION": projection}
        return {**self._environment, **own}


async def make_tables(url: str) -> None:
    """Bring the database to the newest state of the library's tables and the orders API's."""
    connection = await connect(url)
    try:
        await migrate(connection, [LIBRARY, _MIGRATIONS])
    finally:
        await connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
