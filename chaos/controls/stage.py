"""Where a control is played: the order application on one broker, two workers, and a burst of purchases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced, StockReceived
from chaos.controls.hasty import CONTROL
from chaos.load.shop import Shop
from chaos.rig.access import asks_for_rights
from chaos.rig.edge import Edge
from chaos.rig.fleet import Fleet, FleetWorker
from chaos.rig.network import POSTGRES, ClientNetwork
from chaos.rig.records import Request, Way
from chaos.rig.waiting import ChaosFailed, until, until_answered
from demo.evidence import make_codec, quiet
from demo.load import SOURCE
from demo.purchases import Purchase, orchestrated, order, purchases, receipts
from demo.trouble import poison
from demo.workers import PROJECT
from streams.host.client import Producer, TopicReader
from streams.local import Stack, declared, declared_databases, local_stack
from streams.model.message import Message
from streams.testing.faults import LOG, SCRIPT

APP = "controls"
PARTITIONS, LANES = 8, 4
ORDERS = 300
#: So many of them are placed before a fault of the database.
BEFORE = 100
_INPUT = (OrderPlaced.TOPIC, OrderSubmitted.TOPIC, StockReceived.TOPIC)
_OPEN_WITHIN = 60.0
_HANDLED_WITHIN = 90.0


@dataclass
class DatabaseEdge:
    """PostgreSQL, relays and orders APIs, and their clients' requests."""

    stack: Stack
    network: ClientNetwork
    edge: Edge
    requests: list[Request] = field(default_factory=list)

    async def place(self, bought: Iterable[Purchase]) -> None:
        """Place orders over HTTP, each until it is accepted."""
        async with Shop(self.edge.urls) as shop, asyncio.TaskGroup() as tasks:
            for each in bought:
                way: Way = "submitted" if orchestrated(each) else "placed"
                tasks.create_task(shop.place(order(each), way))
        self.requests += shop.requests.values()

    async def until_quiet(self, bootstrap: str) -> None:
        """Wait until all that was accepted is published and handled, and its end is in PostgreSQL. Raises
        ChaosFailed.
        """
        await self.edge.until_published(await self.edge.last(), within=_HANDLED_WITHIN)
        await quiet(bootstrap, APP, within=_HANDLED_WITHIN)
        await until_answered(self._projected, "all is in PostgreSQL", within=_HANDLED_WITHIN)

    async def _projected(self) -> bool:
        return not await self.edge.unprojected()


@dataclass
class Stage:
    """Both workers share the lanes, and the stock is on the shelves; nothing was ordered yet.

    Attributes:
        copies: how often the client sends each message, with the same id.
        poison_every: for one order in so many there is a poisonous record; 0: none.
        faulty: the worker whose faults are scripted.
        database: what takes the orders instead of Kafka; None: Kafka does.
        span: when the first order was placed, and when the last was, in seconds since the epoch; in the end
            when none was under way any more.
    """

    var: Path
    bootstrap: str
    gateway: str
    copies: int
    poison_every: int
    fleet: Fleet
    steady: FleetWorker
    faulty: FleetWorker
    database: DatabaseEdge | None = None
    span: tuple[float, float] = field(default=(0.0, 0.0))

    @property
    def faults_log(self) -> Path:
        """What the faulty worker writes before it does something to itself."""
        return _faults_log(self.var)

    async def place(self) -> None:
        """Place all orders at once; those that go to a database only until its fault."""
        began = time.time()
        bought = purchases(ORDERS)
        if self.database is not None:
            await self.database.place(bought[:BEFORE])
            self.span = (began, time.time())
            return
        orders = (
            (OrderSubmitted if orchestrated(each) else OrderPlaced)(order=order(each)) for each in bought
        )
        # Poison first: the first commits have dead letters, and hardly anything else.
        if self.poison_every:
            await send_poison(self.bootstrap, bought, self.poison_every)
        await _send(self.bootstrap, ((each, f"placed-{each.key}") for each in orders), self.copies)
        self.span = (began, time.time())

    async def repeats(self) -> tuple[int, int]:
        """How many records clients have written, and how many different messages they are."""
        async with TopicReader(self.bootstrap, _INPUT) as reader:
            ids = [(record.topic, dict(record.headers)["ce_id"]) async for record in reader.to_end()]
        return len(ids), len(set(ids))

    async def until_handled(self) -> None:
        """Wait until no message is left, but not for ever: a crippled application may leave some."""
        await quiet(self.bootstrap, APP, within=_HANDLED_WITHIN)
        self.span = (self.span[0], time.time())  # lanes may commit most of a burst after its last order


@asynccontextmanager
async def staged(
    var: Path,
    *,
    control: str,
    copies: int,
    script: str,
    session_timeout: float,
    poison_every: int,
    over_http: bool,
) -> AsyncIterator[Stage]:
    """All up and ready; nothing of it runs when the block is left. Raises ChaosFailed or StackError."""
    project = PROJECT / "pyproject.toml"
    databases = declared_databases(project) if over_http else ()
    async with local_stack(
        var, processes=declared(project), databases=databases, broker_settings=asks_for_rights()
    ) as stack:
        settings = {
            "STEADFAUST_APP_ID": APP,
            "STEADFAUST_BOOTSTRAP": stack.bootstrap,
            "STEADFAUST_GATEWAY_URL": stack.url("gateway"),
            "STEADFAUST_PARTITIONS": str(PARTITIONS),
            "STEADFAUST_LANES": str(LANES),
            "STEADFAUST_SESSION_TIMEOUT": str(session_timeout),
            "STEADFAUST_HEARTBEAT": "1",
            CONTROL: control,
        }
        async with AsyncExitStack() as held:
            fleet = held.enter_context(Fleet(var, settings, slots=2, module="chaos.controls.crippled"))
            steady = await fleet.start(0)
            await until(lambda: fleet.shared(LANES), "the first worker's lanes are open", within=_OPEN_WITHIN)
            await _shelve(stack.bootstrap, copies)
            # Only now: the points that the script counts are those of the orders.
            scripted = {SCRIPT: script, LOG: str(_faults_log(var))} if script else {}
            faulty = await fleet.start(1, **scripted)
            await until(lambda: fleet.shared(LANES), "both workers' lanes are open", within=_OPEN_WITHIN)
            gateway = stack.url("gateway")
            stage = Stage(var, stack.bootstrap, gateway, copies, poison_every, fleet, steady, faulty)
            if over_http:
                stage.database = await _database_edge(var, stack, settings, held)
            yield stage


async def _database_edge(
    var: Path, stack: Stack, settings: dict[str, str], held: AsyncExitStack
) -> DatabaseEdge:
    network = held.enter_context(ClientNetwork(stack, names=[]))
    url, way = stack.url(POSTGRES), network.postgres()
    edge = held.enter_context(Edge(var, url, settings, way=way, through="chaos.controls.former"))
    await edge.start()
    return DatabaseEdge(stack, network, edge)


async def _shelve(bootstrap: str, copies: int) -> None:
    await _send(bootstrap, ((each, f"stock-{each.sku}") for each in receipts()), copies)
    if left := await quiet(bootstrap, APP, within=_HANDLED_WITHIN, topics=(StockReceived.TOPIC,)):
        raise ChaosFailed(
            f"the stock was not on the shelves after {_HANDLED_WITHIN:.0f} s: {left} not handled"
        )


async def _send(bootstrap: str, messages: Iterable[tuple[Message, str]], copies: int) -> None:
    async with Producer(bootstrap, make_codec, source=SOURCE) as producer:
        for message, message_id in messages:
            for _ in range(copies):
                await producer.send(message, message_id=message_id)


async def send_poison(bootstrap: str, bought: Sequence[Purchase], every: int) -> None:
    """Send a poisonous record for one of so many purchases."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for each in bought:
            if (spoiled := poison(each, every)) is not None:
                key, value, headers = spoiled.record
                await producer.send(spoiled.topic, value, key, headers=list(headers))
        await producer.flush()


def _faults_log(var: Path) -> Path:
    return var / "faults.log"
