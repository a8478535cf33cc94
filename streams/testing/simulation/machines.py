"""Machines of a simulated world: each has a disk, a clock, a network, and a worker process to kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from streams.errors import ClusterUnavailable, OutcomeUnknown, TransientError
from streams.model.layout import Layout
from streams.ports import NO_NOTES, TP, Batch, Note, Reader, Sendable, Transactions
from streams.testing.clients import FakeTransactions
from streams.testing.cluster import FakeCluster
from streams.testing.loop import LoopClock, SimulatedLoop
from streams.testing.store import MemoryStore, MemoryStores

T = TypeVar("T")

#: More lanes than any run has.
_APART = 100

#: How long a request waits for its answer on a network that says nothing, in seconds.
PATIENCE = 15.0

_running: ContextVar[Process | None] = ContextVar("process", default=None)


def running() -> Process | None:
    """The process that runs now; None: what runs is on no machine."""
    return _running.get()


class Process:
    """A worker process: what it started ends with it."""

    def __init__(self, machine: Machine, layout: Layout) -> None:
        self.machine = machine
        self.layout = layout
        self.is_alive = True
        #: The producers that it has started last, by transactional id.
        self.producers: dict[str, FakeTransactions] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something within the process."""
        token = _running.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _running.reset(token)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Note a task that this process has made."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if not self.is_alive:
            task.cancel()

    def kill(self) -> None:
        """End it as a SIGKILL does: nothing that its tasks do from now on reaches a disk or the cluster."""
        self.is_alive = False
        for task in list(self._tasks):
            task.cancel()


class Directory:
    """The stores of one number of lanes on a disk: another cut puts other partitions into a lane."""

    def __init__(self, stores: MemoryStores, lanes: int) -> None:
        self._stores = stores
        self._first = lanes * _APART

    def open(self, lane: int) -> MemoryStore:
        """As the disk's."""
        return self._stores.open(self._first + lane)

    def kept(self) -> tuple[int, ...]:
        """The lanes of which there is a store."""
        return tuple(n - self._first for n in self._stores.kept() if 0 <= n - self._first < _APART)

    def crash(self, lane: int, *, lose_batches: int = 0) -> None:
        """As the disk's."""
        self._stores.crash(self._first + lane, lose_batches=lose_batches)

    def damage(self, lane: int) -> None:
        """As the disk's."""
        self._stores.damage(self._first + lane)

    def destroy(self, lane: int) -> None:
        """As the disk's."""
        self._stores.destroy(self._first + lane)


def own_tasks(loop: SimulatedLoop) -> None:
    """Let every task belong to the process that made it."""

    def make(loop: Any, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **more)
        if (process := _running.get()) is not None:
            process.adopt(task)
        return task

    loop.set_task_factory(make)


class Machine:
    """A place where one worker process runs at a time; its disk and its clock outlive the process.

    Attributes:
        is_frozen: the process stands still, and knows nothing of it.
        is_cut_off: no request is answered.
        is_refused: nobody takes its connections.
        is_deaf: the group hears nothing of it, and tells it nothing; all other requests are answered.
        slowness: seconds that each request and each answer takes more.
        per_record: seconds that each record takes which is sent.
    """

    def __init__(self, name: str, loop: SimulatedLoop, rng: Random) -> None:
        self.name = name
        self.stores = MemoryStores()
        self.clock = MachineClock(self, loop)
        self.process: Process | None = None
        self.is_frozen = False
        self.is_cut_off = False
        self.is_refused = False
        self.is_deaf = False
        self.slowness = self.per_record = 0.0
        self.rng = rng
        self._goes = asyncio.Event()
        self._goes.set()

    @property
    def answers(self) -> bool:
        """Whether a worker runs here that the cluster hears of."""
        alive = self.process is not None and self.process.is_alive
        return alive and not (self.is_frozen or self.is_cut_off or self.is_refused or self.is_deaf)

    def directory(self, lanes: int) -> Directory:
        """Where the stores of this number of lanes are."""
        return Directory(self.stores, lanes)

    def freeze(self) -> None:
        """Stop the process, as a SIGSTOP does."""
        self.is_frozen = True
        self._goes.clear()

    def thaw(self) -> None:
        """Let the process go on where it was."""
        self.is_frozen = False
        self._goes.set()

    def kill(self) -> None:
        """Kill the process. Its stores are open until they crash."""
        if self.process is not None:
            self.process.kill()
        self.process = None
        self.thaw()

    def is_running(self, process: Process) -> bool:
        """Whether the process is neither frozen nor dead."""
        return self._goes.is_set() and process.is_alive

    async def runs(self, process: Process) -> None:
        """Wait while the process is frozen, and for ever when it is dead."""
        while not self._goes.is_set():
            await self._goes.wait()
        if not process.is_alive:
            await asyncio.get_running_loop().create_future()


class MachineClock(LoopClock):
    """A machine's own time. Whoever sleeps on a frozen machine wakes when it goes on."""

    def __init__(self, machine: Machine, loop: SimulatedLoop) -> None:
        super().__init__(loop)
        self._machine = machine
        self.skew = 0.0

    def now(self) -> float:
        """Seconds since the epoch, as this machine has them."""
        return super().now() + self.skew

    async def sleep(self, seconds: float) -> None:
        """Wait; the machine's jumps do not matter, as with a monotonic clock."""
        await asyncio.sleep(max(0.0, seconds))
        process = self._machine.process
        if process is not None and not self._machine.is_running(process):
            await self._machine.runs(process)


class HereClock:
    """The clock of whichever machine asks; outside of all of them the world's."""

    def __init__(self, world: LoopClock) -> None:
        self._world = world

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._here().now()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait."""
        return self._here().sleep(seconds)

    def _here(self) -> LoopClock:
        process = running()
        return self._world if process is None else process.machine.clock


@dataclass
class Outside:
    """A service that handlers ask beside Kafka, such as a gateway.

    Attributes:
        is_down: each request fails.
        is_healed: messages that failed for a while succeed.
    """

    is_down: bool = False
    is_healed: bool = False

    async def sleep(self, seconds: float) -> None:
        """A request takes its time, whoever makes it: what is frozen makes it when it goes on."""
        process = _running.get()
        await asyncio.sleep(seconds)
        if process is not None:
            await process.machine.runs(process)

    async def ask(self, seconds: float) -> None:
        """Make a request. Raises TransientError while it is down."""
        await self.sleep(seconds)
        self.check()

    def check(self) -> None:
        """Raises TransientError while it is down."""
        if self.is_down:
            raise TransientError("the outside is down")


async def _unheard(_: str) -> None:
    """No point of this name is of interest."""


class Network:
    """The cluster as one process has it: each request takes its time, and may never be answered.

    `reach` is called with the name of each request that is made outside a transaction, before it is made;
    `opens` with the id of each producer that is about to be made.
    """

    def __init__(
        self,
        cluster: FakeCluster,
        machine: Machine,
        process: Process,
        reach: Callable[[str], Awaitable[None]] = _unheard,
        opens: Callable[[str], object] = bool,
    ) -> None:
        self._opens = opens
        self._cluster = cluster
        self._machine = machine
        self._process = process
        self._reach = reach

    async def request(
        self, call: Callable[[], Awaitable[T]], lost: Callable[[], Exception], point: str = ""
    ) -> T:
        """Make a request. Raises what `lost` makes when there is no answer in time."""
        if point:
            await self._reach(point)
        await self._way(lost)
        answer = await call()
        await self._way(lost)
        return answer

    async def _way(self, lost: Callable[[], Exception]) -> None:
        machine, rng = self._machine, self._machine.rng
        if machine.slowness or rng.random() < 0.3:
            await asyncio.sleep(machine.slowness + rng.choice(_LATENCIES))
        else:
            await asyncio.sleep(0)
        if not machine.is_running(self._process):
            await machine.runs(self._process)
        if machine.is_cut_off:
            await asyncio.sleep(PATIENCE)
            await machine.runs(self._process)
            raise lost()
        if machine.is_refused:
            raise lost()

    def transactions(self, transactional_id: str) -> Transactions:
        """A producer that is not started yet."""
        self._opens(transactional_id)
        return _Producer(self, self._cluster.transactions(transactional_id), transactional_id)

    async def reader(self) -> Reader:
        """A reader with nothing assigned."""
        return _Reader(self, await self._ask(self._cluster.reader, "reader"))

    def __getattr__(self, name: str) -> Any:
        question = getattr(self._cluster, name)

        async def ask(*asked: Any) -> Any:
            return await self._ask(lambda: question(*asked), name)

        return ask

    async def _ask(self, question: Callable[[], Awaitable[T]], name: str) -> T:
        return await self.request(question, lambda: ClusterUnavailable("simulated: no answer"), name)


#: Seconds that a request or an answer may be on its way.
_LATENCIES = (0.001, 0.002, 0.005, 0.02, 0.1, 0.5)


class _Producer:
    def __init__(self, network: Network, inner: FakeTransactions, name: str) -> None:
        self._network = network
        self._inner = inner
        self._name = name
        self._lost = ""

    async def _do(self, call: Callable[[], Awaitable[T]], point: str = "") -> T:
        if self._lost:
            raise OutcomeUnknown(self._lost)

        def lost() -> Exception:
            self._lost = f"simulated: no answer to {self._name}"
            return OutcomeUnknown(self._lost)

        return await self._network.request(call, lost, point)

    async def start(self) -> None:
        self._network._process.producers[self._name] = self._inner
        await self._do(self._inner.start, "start")

    async def begin(self) -> None:
        await self._do(self._inner.begin)

    async def send(self, batches: Mapping[TP, Sequence[Sendable]]) -> dict[TP, int]:
        machine = self._network._machine
        self._inner.clock_ahead = machine.clock.skew
        if machine.per_record:
            await asyncio.sleep(machine.per_record * sum(map(len, batches.values())))
        return await self._do(lambda: self._inner.send(batches))

    async def send_offsets(
        self, offsets: Mapping[TP, int], group: str, notes: Mapping[TP, Note] = NO_NOTES
    ) -> None:
        await self._do(lambda: self._inner.send_offsets(offsets, group, notes))

    async def commit(self) -> None:
        await self._do(self._inner.commit)

    async def discard(self) -> None:
        await self._inner.discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Reader:
    def __init__(self, network: Network, inner: Reader) -> None:
        self._network = network
        self._inner = inner

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        machine = self._network._machine
        if not machine.is_running(self._network._process):
            await machine.runs(self._network._process)
        if machine.is_cut_off or machine.is_refused:
            await asyncio.sleep(timeout)
            await machine.runs(self._network._process)
            return []
        batches = await self._inner.fetch(max_records=max_records, timeout=timeout)
        if batches and machine.slowness:
            await asyncio.sleep(machine.slowness)
        if not machine.is_running(self._network._process):
            await machine.runs(self._network._process)
        return batches

    def silence(self) -> float:
        machine = self._network._machine
        return PATIENCE if machine.is_cut_off or machine.is_refused else self._inner.silence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
