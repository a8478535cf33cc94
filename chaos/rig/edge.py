"""The database edge of a run: relays of the outbox and orders APIs with the projection, each its own process.

Two APIs, because half of the orders are to go either way; each has the projection, of which they share the
partitions. Two relays, which share the outbox. The fault that kills a process starts it again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from agents.cancellation import CancellationRefused
from agents.messages import OrderCancelled, OrderConfirmed
from chaos.rig.processes import ChildProcess
from chaos.rig.records import ProcessEnd, Way
from chaos.rig.waiting import ChaosFailed, until, until_answered
from demo.edge import make_tables
from streams.host.client import unhandled
from streams.local.loopback import HOST, reserve
from streams.postgres.database import connect

RELAYS = 2
WAYS: tuple[Way, ...] = ("placed", "submitted")
_RELAY = (str(Path(sys.executable).with_name("steadfaust")), "outbox", "relay", "--port", "0")
_API = ("-m", "agents.api")
_STARTS_WITHIN = 60.0
#: Relays' locks are of two numbers, others' advisory locks here of one. A relay has one as a member, too.
_OWNERS = """
SELECT pid, count(*) - 1 AS shards FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND granted
GROUP BY pid HAVING count(*) > 1
"""
_WAITS = "SELECT count(*) FROM outbox WHERE published_at IS NULL AND position <= $1"
_LOCK = "SELECT position FROM outbox WHERE published_at IS NULL LIMIT 500 FOR UPDATE SKIP LOCKED"
_LAST = "SELECT coalesce(max(position), 0) FROM outbox"
_SETTLED = "SELECT count(*) FROM orders WHERE status <> 'pending' AND updated_at > to_timestamp($1)"
_PROJECTED = (OrderConfirmed.TOPIC, OrderCancelled.TOPIC, CancellationRefused.TOPIC)


class Edge:
    """Starts the processes of the edge, and ends all of them when left.

    Attributes:
        processes: all that were ever started, oldest first.
        urls: where the APIs are, the same after each start.
    """

    def __init__(
        self, var: Path, postgres: str, settings: Mapping[str, str], *, way: str = "", through: str = ""
    ) -> None:
        """`settings` are the processes' environment beside ours and must name STEADFAUST_APP_ID and
        STEADFAUST_BOOTSTRAP; `way` is the URL by which they reach PostgreSQL, where it is another than ours;
        `through` is the module that runs them, if they are not to run by themselves.
        """
        self.processes: list[ChildProcess] = []
        self.postgres = postgres
        self.urls: dict[Way, str] = {}
        self._settings = {**settings, "STEADFAUST_VAR": str(var), "STEADFAUST_POSTGRES_URL": way or postgres}
        self._python = (sys.executable, *(("-m", through) if through else ()))
        self._log = var / "log"
        self._ports: dict[Way, int] = {}
        self._held = ExitStack()
        self._started: Counter[str] = Counter()

    async def start(self) -> None:
        """Make the tables, and start everything. Raises ChaosFailed when something does not start."""
        await make_tables(self.postgres)
        starting = [self.start_relay(number) for number in range(RELAYS)]
        await asyncio.gather(*starting, *(self.start_api(way) for way in WAYS))
        await self.until_shared(within=_STARTS_WITHIN)

    async def start_relay(self, number: int) -> ChildProcess:
        """Start a relay; returns when it has joined the others."""
        relay = self._process(relay_name(number), _RELAY)
        joined = f"{relay.name} joins: see {relay.log.path}"
        await until(
            lambda: relay.log.events("relay_joined") or not relay.alive, joined, within=_STARTS_WITHIN
        )
        return relay

    async def start_api(self, way: Way) -> ChildProcess:
        """Start an API where it was; returns when it answers that it is well."""
        api = self._process(api_name(way), _API, PORT=str(self._ports[way]), STEADFAUST_ORDERS_WAY=way)

        async def answers() -> bool:
            return not api.alive or await self._is_well(way)

        await until_answered(answers, f"{api.name} answers: see {api.log.path}", within=_STARTS_WITHIN)
        return api

    def named(self, name: str) -> ChildProcess:
        """The process of this name that runs. Raises ChaosFailed when there is none."""
        found = next((each for each in self.processes if each.name == name and each.alive), None)
        if found is None:
            raise ChaosFailed(f"no {name} runs")
        return found

    def unexpected(self) -> list[ChildProcess]:
        """Processes that ended by themselves."""
        return [each for each in self.processes if not each.alive and not each.expected]

    async def stop(self, why: str) -> list[ProcessEnd]:
        """SIGTERM all, and wait until all have ended; returns how each that ever ran did."""
        await asyncio.gather(*(each.stop(why) for each in self.processes if each.alive))
        return [each.ended() for each in self.processes]

    # -- what is looked at ----------------------------------------------------------------------------

    async def owners(self) -> dict[int, int]:
        """How many shards each relay has, by its session in PostgreSQL."""
        return {row["pid"]: row["shards"] for row in await self._fetch(_OWNERS)}

    async def last(self) -> int:
        """The position of the newest row of the outbox."""
        return int((await self._fetch(_LAST))[0][0])

    async def until_shared(self, *, within: float) -> None:
        """Wait until every relay has shards. Raises ChaosFailed."""

        async def shared() -> bool:
            return len(await self.owners()) == RELAYS

        await until_answered(shared, "all relays have shards", within=within)

    async def until_published(self, last: int, *, within: float) -> None:
        """Wait until no row of the outbox waits up to this position. Raises ChaosFailed."""

        async def published() -> bool:
            return int((await self._fetch(_WAITS, last))[0][0]) == 0

        await until_answered(published, f"the outbox is published up to {last}", within=within)

    async def until_settled_since(self, began: float, *, within: float) -> None:
        """Wait until the projection has written the end of an order since. Raises ChaosFailed."""

        async def settled() -> bool:
            return int((await self._fetch(_SETTLED, began))[0][0]) > 0

        await until_answered(settled, "the projection writes", within=within)

    @asynccontextmanager
    async def locked_rows(self, *, within: float) -> AsyncIterator[tuple[int, int]]:
        """Hold the locks of rows that wait, as an operator's transaction; yields its pid, and how many.

        Raises ChaosFailed when no row waits, again and again.
        """
        connection = await connect(self.postgres, name="operator")
        try:
            rows: list[Any] = []

            async def locked() -> bool:
                # Another transaction each time: this one is to hold nothing but what it has found.
                await connection.execute("ROLLBACK; BEGIN")
                rows[:] = await connection.fetch(_LOCK)
                return bool(rows)

            await connection.execute("BEGIN")
            await until_answered(locked, "rows of the outbox wait, and are locked", within=within)
            yield connection.get_server_pid(), len(rows)
        finally:
            await connection.close()

    async def unpublished(self) -> int:
        """How many rows of the outbox wait."""
        return int((await self._fetch(_WAITS, await self.last()))[0][0])

    async def unprojected(self) -> dict[str, int]:
        """How many events have not come back into PostgreSQL, by topic."""
        group = f"{self._settings['STEADFAUST_APP_ID']}-orders-projection"
        found = await unhandled(self._settings["STEADFAUST_BOOTSTRAP"], group, _PROJECTED)
        return {f"{topic}, in PostgreSQL": number for topic, number in found.items()}

    async def _fetch(self, query: str, *arguments: object) -> Sequence[Any]:
        connection = await connect(self.postgres)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()

    async def _is_well(self, way: Way) -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.urls[way]}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:  # it does not listen yet
            return False

    def _process(self, name: str, command: Sequence[str], **environment: str) -> ChildProcess:
        self._log.mkdir(parents=True, exist_ok=True)
        log = self._log / f"{name}.{self._started[name]}.log"
        self._started[name] += 1
        command = (*self._python, *command)
        process = ChildProcess(name, log, command, {**os.environ, **self._settings, **environment})
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        for way in WAYS:
            port = reserve()
            self._held.callback(port.release)
            self._ports[way] = port.port
            self.urls[way] = f"http://{HOST}:{port.port}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for process in self.processes:
                if process.alive:
                    process.kill("the run was left")
        finally:
            self._held.close()


def relay_name(number: int) -> str:
    """What a relay is called everywhere."""
    return f"relay-{number}"


def api_name(way: Way) -> str:
    """What the API is called whose orders go this way."""
    return f"api-{way}"
