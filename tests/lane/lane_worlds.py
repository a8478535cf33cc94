"""A world that lanes run in, and the one in memory, where time is the test's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, NamedTuple, cast

from streams.engine.life.lane import Lane
from streams.engine.life.positions.declared import DEAD_LETTER_ROOM, declare
from streams.engine.life.session import shared_by
from streams.model.application import Application, LaneOptions
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import MakeCodec, json_without_schema
from streams.model.envelope import new_headers
from streams.model.layout import Layout
from streams.ports import TP, Ports, Record, Stores
from streams.testing.cluster import FakeCluster
from streams.testing.faults import LaneKilled, ScriptedFaults
from streams.testing.loop import LoopClock, SimulatedLoop
from streams.testing.store import MemoryStores

_names = count(time.time_ns())


class Post(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, Any]]


class Running:
    def __init__(self, lane: Lane, world: World) -> None:
        self.lane = lane
        self._world = world
        self.task = asyncio.create_task(lane.run())
        self.may_fail = False

    @property
    def handled(self) -> int:
        return self.lane.counters.handled

    async def stop(self) -> None:
        """Stop it as a worker does; what it ends with is raised."""
        self.lane.stop()
        await self.ended()

    async def ended(self) -> None:
        self.may_fail = True  # the one who waits for it gets to see how
        await self._world.until(self.task.done)
        self.task.result()

    async def killed(self) -> None:
        """Wait until a scripted kill has ended it."""
        with suppress(LaneKilled):
            await self.ended()
            raise AssertionError("the lane was not killed")


class World:
    """What both have. `start` makes the application and its topics; a test starts it once."""

    cluster: Any
    clock: Any
    app: Application
    is_fake: bool
    #: How long a wait may last, and by which clock, in seconds.
    bound: float
    spent: Callable[[], float]

    def __init__(self) -> None:
        self.name = f"lane{next(_names)}"
        self.faults = ScriptedFaults()
        self.running: list[Running] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.at_end: list[Callable[[], Coroutine[Any, Any, None]]] = []

    async def start(
        self,
        workload: Any,
        *,
        partitions: int = 2,
        lanes: int = 1,
        codecs: MakeCodec = json_without_schema,
        claims: ClaimChecks | None = None,
        transaction_timeout: float = 15.0,
        others: Mapping[str, int] | None = None,
        **lane_options: Any,
    ) -> Application:
        """`others` are topics that others have made, each with its number of partitions."""
        small = {"max_batch": 50, "max_backlog": 200, "max_message_bytes": 20_000, "fenced_pause": 0.1}
        self.app = Application(
            Layout(self.name, partitions, lanes),
            workload.wiring,
            codecs,
            resources=workload.resources,
            lane_options=LaneOptions(**{**small, "hold_back": 0.0, **lane_options}),
            claims=claims,
        )
        self.machine, self.others = self.stores(), others or {}
        self.transaction_timeout = transaction_timeout
        await self._start()
        return self.app

    def cut_into(self, workload: Any, *, lanes: int, codecs: MakeCodec = json_without_schema) -> Application:
        """The same application with another number of lanes, or of another deploy."""
        layout = Layout(self.name, self.app.layout.partitions, lanes)
        return Application(
            layout, workload.wiring, codecs, resources=workload.resources, lane_options=self.app.lane_options
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until the test ends."""
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def _start(self) -> None: ...
    async def _tick(self) -> None: ...
    async def post(self, *posts: Post) -> None: ...
    async def post_batch(self, tp: TP, raw: bytes) -> None: ...
    async def spoil(self, tp: TP, offset: int) -> None: ...
    async def truncate(self, tp: TP, before: int) -> None: ...
    async def recreate(self, topic: str) -> None: ...
    async def delete(self, topic: str) -> None: ...
    async def add_partitions(self, topic: str, partitions: int) -> None: ...
    async def make_topics(self, app: Application, names: Collection[str]) -> None: ...
    async def forget_group(self) -> None: ...
    def stores(self) -> Stores: ...

    # -- lanes ----------------------------------------------------------------------------------------

    def lane(
        self,
        number: int = 0,
        *,
        stores: Stores | None = None,
        faults: Any = None,
        app: Any = None,
        topics: Any = None,
        **more: Any,
    ) -> Running:
        """A lane that has begun to run, on this world's machine and with its faults unless told otherwise."""
        ports = Ports(self.cluster, stores or self.machine, self.clock, faults or self.faults)
        lane = Lane(app or self.app, number, ports, shared_by(app or self.app, ports, **more), topics)
        self.running.append(Running(lane, self))
        return self.running[-1]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition. A lane that fails meanwhile fails the test."""
        deadline = self.spent() + self.bound
        while not condition():
            for running in self.running:
                if running.task.done() and not running.may_fail:
                    running.task.result()
            assert self.spent() < deadline, "waited in vain"
            await self._tick()

    async def passes(self, seconds: float, *, real: float) -> None:
        """Let time go on with all that runs in it: `seconds`, or `real` ones where time is not the test's."""
        end = self.clock.now() + (seconds if self.is_fake else real)
        await self.until(lambda: self.clock.now() >= end)

    async def open(self, number: int = 0, **options: Any) -> Running:
        """A lane, once it is open."""
        running = self.lane(number, **options)
        await self.until(lambda: running.lane.state == "open")
        return running

    async def settled(self, *topics: str) -> None:
        """Wait until the committed positions are past every record of these topics, also of those that were
        sent on to another partition.
        """
        ends: dict[TP, int] = {}
        for topic in topics:
            for record in await self.records(topic):
                ends[TP(topic, record.partition)] = record.offset + 1
        deadline = self.spent() + self.bound
        committed: dict[TP, int] = {}
        while not all(committed.get(tp, 0) >= end for tp, end in ends.items()):
            assert self.spent() < deadline, f"at {committed}, expected {ends}"
            await self._tick()
            committed = await self.cluster.committed(self.name, ends)
        if sent_on := [each for each, source in self.app.repartitions.items() if source in topics]:
            await self.settled(*sent_on)

    async def until_at(self, positions: dict[TP, int]) -> None:
        """Wait until the group is at these positions: a commit returns before a broker shows them."""
        deadline = self.spent() + self.bound
        while (at := await self.cluster.committed(self.name, positions)) != positions:
            assert self.spent() < deadline, f"at {at}, expected {positions}"
            await self._tick()

    # -- messages -------------------------------------------------------------------------------------

    def event(
        self, workload: Any, key: str, i: int, *, message_id: str = "", partition: int | None = None
    ) -> Post:
        message = workload.made(k=key, i=i)
        codec = self.app.message_codecs[workload.source]
        headers = new_headers(
            workload.source, key, source="outside", time=1e9, message_id=message_id or f"{key}-{i}"
        )
        headers.append(("schema-fingerprint", codec.fingerprint))
        return self.raw(workload.source, key, codec.encode(message), headers, partition)

    def raw(
        self, topic: str, key: str, value: bytes | None, headers: Any, partition: int | None = None
    ) -> Post:
        """Any bytes, under a key."""
        home = self.app.layout.partition_of(key.encode()) if partition is None else partition
        return Post(topic, home, key.encode(), value, headers)

    async def records(self, topic: str) -> list[Record]:
        """All that a read_committed reader gets of a topic, each partition in order."""
        partitions = (await self.cluster.identity([topic])).partitions[topic]
        tps = [TP(topic, p) for p in range(partitions)]
        begins = await self.cluster.begin_offsets(tps)
        ends = await self.cluster.end_offsets(tps)
        reader = await self.cluster.reader()
        found: list[Record] = []
        try:
            await reader.assign({tp: begins[tp] for tp in tps if begins[tp] < ends[tp]})
            deadline = self.spent() + self.bound
            while any(reader.position(tp) < ends[tp] for tp in tps if begins[tp] < ends[tp]):
                assert self.spent() < deadline, f"{len(found)} records of {topic}, not all"
                for batch in await reader.fetch(max_records=1000, timeout=0.2):
                    found += batch.records
        finally:
            await reader.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def set_group(self, offsets: dict[TP, int]) -> None:
        """Move the group's positions behind the lane's back, as a reset by hand does."""
        producer = self.cluster.transactions(f"{self.name}-meddler")
        await producer.start()
        await producer.begin()
        await producer.send_offsets(offsets, self.name)
        await producer.commit()
        await producer.discard()

    async def close(self) -> None:
        for end in self.at_end:
            await end()
        tasks = [*(running.task for running in self.running), *self.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class FakeWorld(World):
    """In memory, in simulated time: it passes only while everything waits, and then costs nothing."""

    is_fake = True
    bound, spent = 30.0, staticmethod(time.process_time)  # a busy machine does not count

    def __init__(self, loop: SimulatedLoop | None = None) -> None:
        super().__init__()
        loop = loop or cast(SimulatedLoop, asyncio.get_running_loop())
        loop.simulate()
        self.clock = LoopClock(loop)

    async def _start(self) -> None:
        largest = self.app.lane_options.max_message_bytes + DEAD_LETTER_ROOM
        declared = declare(self.app, replication=1)
        self.cluster = FakeCluster(
            {**{spec.name: spec.partitions for spec in declared}, **self.others},
            max_batch=largest,
            limits={spec.name: int(spec.config["max.message.bytes"]) for spec in declared},
            now=self.clock.now,
        )
        self.cluster.transaction_timeout = self.transaction_timeout

    def stores(self) -> MemoryStores:
        return MemoryStores()

    async def _tick(self) -> None:
        await asyncio.sleep(0.05)

    async def turns(self, turns: int = 200) -> None:
        """Let everything run as far as it can without time going on."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def post(self, *posts: Post) -> None:
        for post in posts:
            self.cluster.produce(TP(post.topic, post.partition), post.key, post.value, post.headers)

    async def post_batch(self, tp: TP, raw: bytes) -> None:
        self.cluster.produce_batch(tp, raw)

    async def spoil(self, tp: TP, offset: int) -> None:
        self.cluster.spoil(tp, offset)

    async def truncate(self, tp: TP, before: int) -> None:
        self.cluster.truncate(tp, before)

    async def recreate(self, topic: str) -> None:
        self.cluster.recreate_topic(topic)

    async def delete(self, topic: str) -> None:
        self.cluster.delete_topic(topic)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        self.cluster.create_topic(topic, partitions)

    async def make_topics(self, app: Application, names: Collection[str]) -> None:
        for spec in declare(app, replication=1):
            if spec.name in names:
                self.cluster.create_topic(spec.name, spec.partitions)

    async def forget_group(self) -> None:
        self.cluster.forget_group(self.name)


@asynccontextmanager
async def closing(world: World) -> AsyncIterator[World]:
    """Ends whatever a test leaves running."""
    try:
        yield world
    finally:
        await world.close()


def ids(records: Sequence[Record]) -> list[str]:
    return [dict(record.headers)["ce_causationid"].decode() for record in records]
