"""A run: workers on brokers under load, faults on schedule, and then silence, so that it can be checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.commands import OrderSubmitted
from agents.messages import OrderCancelled, OrderConfirmed
from chaos.faults.ground import Ground
from chaos.injection import Injection, Say
from chaos.load.clients import ATTACHED, payload_environment, payload_settings
from chaos.load.load import Load
from chaos.load.notes import NoteMade
from chaos.load.shop import Shop
from chaos.rig.access import asks_for_rights
from chaos.rig.brokers import BrokerAdmin, hasten_compaction
from chaos.rig.commits import CommitWatch
from chaos.rig.edge import Edge
from chaos.rig.fleet import Fleet, disk_of, worker_name
from chaos.rig.kinds import BROKERS, LANES, PARTITIONS, SLOTS, WORKERS, Planned
from chaos.rig.network import ClientNetwork
from chaos.rig.records import COMMITS, REQUESTS, RUN, Happened, ProcessEnd, Request, RunRecords
from chaos.rig.waiting import ChaosFailed, until
from chaos.rig.worker_faults import ARMED, CLOCK, FAILING, clock_of, failing_file, script_of
from chaos.schedule import LONGEST_DELAY
from demo.evidence import SOURCES, quiet
from demo.load import receive_stock
from demo.purchases import ROWS
from demo.trouble import POISON_EVERY
from demo.workers import PROJECT
from streams.host.client import TopicReader
from streams.local import Stack, declared, declared_buckets, declared_databases, local_stack
from streams.model.layout import Layout
from streams.s3 import claim_checks

LAYOUT = Layout("chaos", PARTITIONS, LANES)
SESSION_TIMEOUT = 6.0
#: Messages a second by default; fewer in a run that is so long that the purchases would not last.
RATE = 40.0
_SPARE = 1.05  # each purchase makes 1.15 messages, and faults may take a little longer than planned
_LONGEST_SCENE = 60.0
_NAMES = [worker_name(slot) for slot in range(SLOTS)]
_REVIVE_AFTER = 3.0
_OPEN_WITHIN = 120.0
_STILL_FOR = 60.0
_QUIET_WITHIN = 900.0
_QUIET_STEP = 5.0
_LOOK_EVERY = 0.5
_HEALED_BEFORE_END = 3.0


@dataclass(frozen=True)
class RunPlan:
    """What to run: `faults` over a load of at least so many `seconds`; beside a share of the orders comes one
    that is `called_off`. `rate` in messages a second.
    """

    seed: int
    seconds: float
    var: Path
    faults: Sequence[Planned]
    called_off: float = 0.0
    rate: float = RATE


@dataclass
class DriverNotes:
    """What the driver itself saw, beside the records for the checker: see `chaos.report.Report`."""

    run: RunRecords
    problems: list[str]
    left_out: int
    sent: int
    again: int


def stack_of(plan: RunPlan, say: Say) -> local_stack:
    """Three brokers, the gateway, S3 and PostgreSQL, with a listener of every broker for each worker."""
    project = PROJECT / "pyproject.toml"
    return local_stack(
        plan.var,
        brokers=BROKERS,
        processes=declared(project),
        buckets=declared_buckets(project),
        databases=declared_databases(project),
        revive_after=_REVIVE_AFTER,
        listeners=_NAMES,
        broker_settings=asks_for_rights(_NAMES),
        say=say,
    )


class Driver:
    """Drives one run on a stack that is up."""

    def __init__(self, plan: RunPlan, stack: Stack, say: Say) -> None:
        self._plan = plan
        self._stack = stack
        self._say = say
        self._happened: list[Happened] = []
        self._problems: list[str] = []
        self._left_out = 0
        self._requests: list[Request] = []
        rate = min(plan.rate, ROWS / (plan.seconds * _SPARE))
        self._load = Load(stack.bootstrap, seed=plan.seed, rate=rate, most=ROWS, called_off=plan.called_off)

    async def run(self) -> DriverNotes:
        """From the first worker to the last; every worker has ended when it returns.

        Raises ChaosFailed, or another SteadfaustError, when there is nothing that could be checked.
        """
        bootstrap = self._stack.bootstrap
        with (
            ClientNetwork(self._stack, names=_NAMES) as network,
            Fleet(self._plan.var, self._settings(), slots=SLOTS, by_slot=self._by_slot(network)) as fleet,
            Edge(
                self._plan.var,
                self._stack.url("postgres"),
                self._settings_of_edge(),
                way=network.postgres(),
            ) as edge,
        ):
            brokers = BrokerAdmin(self._stack, LAYOUT)
            ground = Ground(self._plan.var, LAYOUT, fleet, brokers, network, self._stack, self._load, edge)
            self._say(f"starting {WORKERS} workers, then relays and orders APIs")
            await asyncio.gather(*(fleet.start(slot) for slot in range(WORKERS)))
            await until(lambda: fleet.shared(LAYOUT.lanes), "all lanes are open", within=_OPEN_WITHIN)
            await edge.start()
            await hasten_compaction(bootstrap, LAYOUT.app_id)
            await receive_stock(bootstrap, LAYOUT.app_id)
            watch = CommitWatch(bootstrap, LAYOUT.app_id, LAYOUT.partitions, LAYOUT.lanes)
            watching = asyncio.create_task(watch.run())
            try:
                await self._under_load(ground)
                await self._until_quiet(edge)
            finally:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
            await self._end_workers(fleet, edge)
            notes = self._notes(fleet, ground.layout, await edge.stop("the end of the run"))
        (self._plan.var / REQUESTS).write_bytes(msgspec.json.encode(self._requests))
        (self._plan.var / RUN).write_bytes(msgspec.json.encode(notes.run))
        (self._plan.var / COMMITS).write_bytes(msgspec.json.encode(watch.commits()))
        return notes

    def _settings(self) -> dict[str, str]:
        return {
            "STEADFAUST_APP_ID": LAYOUT.app_id,
            "STEADFAUST_PARTITIONS": str(LAYOUT.partitions),
            "STEADFAUST_LANES": str(LAYOUT.lanes),
            "STEADFAUST_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
            # By their next heartbeat members hear of a rebalance; a worker that comes back makes two of one.
            "STEADFAUST_HEARTBEAT": "0.5",
            # Three brokers on the machine of the workers: each transaction costs all of them.
            "STEADFAUST_LINGER": "0.1",
            # What the gateway's client does not sit out is tried again by the lane.
            "STEADFAUST_GATEWAY_PATIENCE": "2",
            # Handlers fail for 8 s at most, and none of their messages may become a dead letter of it.
            "STEADFAUST_RETRY_DELAYS": f"0.3,1,{LONGEST_DELAY:g}",
            FAILING: str(failing_file(self._plan.var)),
        }

    def _settings_of_edge(self) -> dict[str, str]:
        return {**self._settings(), "STEADFAUST_BOOTSTRAP": self._stack.bootstrap}

    def _by_slot(self, network: ClientNetwork) -> dict[int, dict[str, str]]:
        """Each worker reaches brokers, gateway and S3 through the proxy, and is armed, by ways of its own."""
        return {
            slot: {
                "STEADFAUST_BOOTSTRAP": network.bootstrap(name),
                "STEADFAUST_GATEWAY_URL": network.gateway(name),
                **payload_environment(network.s3(name)),
                ARMED: str(script_of(self._plan.var, name)),
                CLOCK: str(clock_of(self._plan.var, name)),
                **disk_of(self._plan.var, LAYOUT.app_id, slot).environment,
            }
            for slot, name in enumerate(_NAMES)
        }

    # -- load and faults ------------------------------------------------------------------------------

    async def _under_load(self, ground: Ground) -> None:
        injection = Injection(
            self._plan.faults, ground, self._say, lasts=lambda: self._load.lasts(_LONGEST_SCENE)
        )
        load = asyncio.create_task(self._run_load(ground.edge))
        faults = asyncio.create_task(self._inject(injection))
        deaths = asyncio.create_task(self._watch_over(ground))
        try:
            await asyncio.wait((load, faults, deaths), return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                load.result()
                raise ChaosFailed("the purchases were used up before the last fault: run for a shorter time")
            for task in (faults, deaths):
                if task.done():
                    task.result()
        finally:
            for task in (faults, deaths):
                task.cancel()
            await asyncio.gather(faults, deaths, return_exceptions=True)
            self._load.end()
            self._happened = sorted(injection.happened, key=lambda each: each.began)
            self._problems += injection.problems
            self._left_out = injection.left_out
        await load
        self._say(f"{self._load.placed:,} orders placed; waiting until all is handled")

    async def _run_load(self, edge: Edge) -> None:
        async with claim_checks(payload_settings(self._stack.url("s3"))) as claims, Shop(edge.urls) as shop:
            self._load.shop = shop
            await self._load.run(claims)
            self._requests = list(shop.requests.values())

    async def _inject(self, injection: Injection) -> None:
        """Every fault in its turn, then what is left of the time."""
        await injection.run()
        if not injection.problems:
            await asyncio.sleep(max(_HEALED_BEFORE_END, self._plan.seconds - injection.elapsed))

    async def _watch_over(self, ground: Ground) -> None:
        """Returns when a worker, a relay or an API has ended by itself."""
        while not (ground.fleet.unexpected() or ground.edge.unexpected()):
            await asyncio.sleep(0.2)
            _ = self._stack.state  # raises when the stack has gone down

    # -- the end --------------------------------------------------------------------------------------

    async def _until_quiet(self, edge: Edge) -> None:
        topics = (*SOURCES, NoteMade.TOPIC) if self._load.notes else SOURCES
        began = moved = time.monotonic()
        before: dict[str, int] = {}
        while left := await self._left(topics, edge):
            now = time.monotonic()
            moved = now if left != before else moved
            before = left
            if now - moved > _STILL_FOR or now - began > _QUIET_WITHIN:
                self._problems.append(f"unhandled, and still for {now - moved:.0f} s: {left}")
                return
            self._say(f"still unhandled: {sum(left.values()):,} of {len(left)} kinds")
            await asyncio.sleep(_LOOK_EVERY)

    async def _left(self, topics: tuple[str, ...], edge: Edge) -> dict[str, int]:
        """What is on its way into Kafka, messages that are not handled, by topic, sagas that have not ended,
        and what is on its way back into PostgreSQL; of these the first of which there is any.
        """
        if rows := await edge.unpublished():
            return {"rows of the outbox": rows}
        if left := await quiet(self._stack.bootstrap, LAYOUT.app_id, within=_QUIET_STEP, topics=topics):
            return left
        if sagas := await unended_sagas(self._stack.bootstrap):
            return {"sagas": sagas}
        return await edge.unprojected()

    async def _end_workers(self, fleet: Fleet, edge: Edge) -> None:
        for worker in (*fleet.unexpected(), *edge.unexpected()):
            self._problems.append(f"{worker.name} ended with {worker.exit_code}: {worker.log.path}")
        last = fleet.alive
        await fleet.stop_all("the end of the run")
        for worker in last:
            if worker.hung or worker.exit_code != 0:
                how = "hung" if worker.hung else f"ended with {worker.exit_code}"
                self._problems.append(f"{worker.name} {how} at the end: {worker.log.path}")

    def _notes(self, fleet: Fleet, layout: Layout, edge: list[ProcessEnd]) -> DriverNotes:
        run = RunRecords(
            seed=self._plan.seed,
            app_id=LAYOUT.app_id,
            bootstrap=self._stack.bootstrap,
            gateway=self._stack.url("gateway"),
            partitions=LAYOUT.partitions,
            lanes=LAYOUT.lanes,
            lanes_at_end=layout.lanes,
            session_timeout=SESSION_TIMEOUT,
            orders=self._load.placed,
            load=self._load.span,
            faults=self._happened,
            workers=[worker.ended() for worker in fleet.workers],
            notes=self._load.notes,
            s3=self._stack.url("s3"),
            attached=ATTACHED,
            poison_every=POISON_EVERY,
            orchestrated=True,
            called_off=self._plan.called_off,
            postgres=self._stack.url("postgres"),
            edge=edge,
        )
        again = self._load.again + (self._load.shop.again if self._load.shop is not None else 0)
        return DriverNotes(run, self._problems, self._left_out, self._load.sent, again)


async def unended_sagas(bootstrap: str) -> int:
    """How many sagas have begun and not ended: those that wait for a timer have no message left to handle."""
    begun, ended = set[bytes | None](), set[bytes | None]()
    topics = [OrderSubmitted.TOPIC, OrderConfirmed.TOPIC, OrderCancelled.TOPIC]
    async with TopicReader(bootstrap, topics) as reader:
        async for record in reader.to_end():
            (begun if record.topic == OrderSubmitted.TOPIC else ended).add(record.key)
    return len(begun - ended)
