"""Where relays of both kinds are tried: a PostgreSQL, a Kafka, and Kafka Connect for change data capture."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp

from streams.host.client import TopicReader
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.model.layout import Layout
from streams.ports import Record, TopicSpec
from streams.postgres import Connection, Database
from streams.postgres.cdc import RelayKind
from streams.postgres.database import connect
from streams.postgres.errors import DatabaseUnavailable
from tests.relays import Step, drained, first_time, new_outbox, publish, until
from tests.waiting import BOUND

APP = "relays"
#: Seconds. A task that Connect has given up holds names and the slot for a while, as after a broker was away:
#: Debezium's next one asks for the names for a minute, and for the slot for another.
AFTER_A_TASK = 3 * BOUND


class Ground(NamedTuple):
    """A relay of one kind, and what it stands on.

    Attributes:
        kind: who brings rows to Kafka.
        database: whose outbox is relayed.
        directory: for logs.
        orders: the aggregates of a test, which no other test has.
        stack: whose Kafka, PostgreSQL and Connect may be killed; None: others use them, too.
    """

    kind: RelayKind
    bootstrap: str
    database: Database
    directory: Path
    orders: tuple[str, ...]
    stack: Stack | None = None

    @property
    def environment(self) -> dict[str, str]:
        connect_url = self.stack.url("connect") if self.stack and self.kind is RelayKind.CDC else ""
        return {
            **os.environ,
            "STEADFAUST_APP_ID": APP,
            "STEADFAUST_POSTGRES_URL": self.database.url,
            "STEADFAUST_BOOTSTRAP": self.bootstrap,
            "STEADFAUST_OUTBOX": self.kind,
            "STEADFAUST_CONNECT_URL": connect_url,
            "STEADFAUST_FAULTS_LOG": str(self.directory / "faults.log"),
        }

    @contextmanager
    def relay(self, faults: str = "", **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """A relay's process for the time of the block; killed at its end."""
        environment = {**self.environment, "STEADFAUST_FAULTS": faults, **settings}
        command = [STEADFAUST, "outbox", "relay", "--port", "0"]
        with (self.directory / "relay.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=BOUND)

    async def pages(self) -> tuple[dict[str, Any], str]:
        """`/health` and `/metrics` of the relay that was started last, once it answers."""
        found: list[str] = []

        def told() -> bool:
            found[:] = re.findall(r"^relay: (\S+)/health$", (self.directory / "relay.log").read_text(), re.M)
            return bool(found)

        await until(told)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{found[-1]}/health") as answer:
                health: dict[str, Any] = await answer.json()
            async with session.get(f"{found[-1]}/metrics") as answer:
                return health, await answer.text()

    async def command(self, *words: str) -> tuple[int, str]:
        """Status and output of a `steadfaust` command."""
        process = await asyncio.create_subprocess_exec(
            STEADFAUST, *words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        async with asyncio.timeout(2 * BOUND):
            said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async def publish(self, *numbers: int) -> None:
        outbox = new_outbox()
        async with self.database.acquire() as connection:
            for number in numbers:
                await publish(outbox, connection, *((order, number) for order in self.orders))

    async def drained(self) -> None:
        """Wait until every row is marked."""
        await drained(self.database, bound=AFTER_A_TASK if self.kind is RelayKind.CDC else BOUND)

    async def records(self) -> list[Record]:
        keys = {order.encode() for order in self.orders}
        async with TopicReader(self.bootstrap, [Step.TOPIC]) as reader:
            return [record async for record in reader.to_end() if record.key in keys]

    async def came(self) -> dict[str, list[int]]:
        found = defaultdict(list)
        for record in await self.records():
            order, _, number = dict(record.headers)["ce_id"].decode().rpartition(":")
            found[order].append(int(number))
        return found

    async def must_be_whole(self, numbers: int) -> int:
        """Every number of every order has come, first in its order; returns how many were repeated."""
        found = await self.came()
        assert {order: first_time(found[order]) for order in self.orders} == {
            order: list(range(numbers)) for order in self.orders
        }
        return sum(len(found[order]) for order in self.orders) - numbers * len(self.orders)

    async def owners(self) -> int:
        async with self.database.acquire() as connection:
            counted = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
            return int(await connection.fetchval(counted))

    async def answers(self) -> bool:
        try:
            connection = await connect(self.database.url)
        except DatabaseUnavailable:  # it recovers
            await asyncio.sleep(0.1)
            return False
        await connection.close()
        return True


STEADFAUST = str(Path(sys.executable).with_name("steadfaust"))


def new_orders() -> tuple[str, ...]:
    """Twenty aggregates that there are nowhere else."""
    return tuple(f"o-{uuid4()}" for _ in range(20))


async def crash(connection: Connection) -> None:
    """Kill a process of PostgreSQL's, which takes all others with it; not what is written already."""
    os.kill(await connection.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)


async def prepared(bootstrap: str) -> None:
    async with KafkaTopics(bootstrap) as topics:
        announcements = Layout(APP, 1, 1).announcements
        found = await topics.describe([announcements, Step.TOPIC])
        specs = (TopicSpec(announcements, 1, 1), TopicSpec(Step.TOPIC, 3, 1))
        await topics.create(spec for spec in specs if spec.name not in found)
