"""Simulated machines, each with a disk, a clock, a network, and a worker process that can be killed."""

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

#: Offset between the lane numbers of different lane counts in one `MemoryStores`; larger than any lane count.
_APART = 100

#: Seconds before a request without an answer fails.
PATIENCE = 15.0

_running: ContextVar[Process | None] = ContextVar("process", default=None)


def running() -> Process | None:
    """The simulated process that the current task belongs to; None outside of all machines."""
    return _running.get()


class Process:
    """A worker process. Its tasks end with it."""

    def __init__(self, machine: Machine, layout: Layout) -> None:
        self.machine = machine
        self.layout = layout
        self.is_alive = True
        #: The last producer that it has started for each transactional id.
        self.producers: dict[str, FakeTransactions] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of this process."""
        token = _running.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _running.reset(token)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Register a task of this process; cancel it if the process is dead."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if not self.is_alive:
            task.cancel()

    def kill(self) -> None:
        """End the process as SIGKILL does: its tasks no longer reach a disk or the cluster."""
        self.is_alive = False
        for task in list(self._tasks):
            task.cancel()


class Directory:
    """The stores for one lane count on a disk. With another lane count, lanes have other partitions."""

    def __init__(self, stores: MemoryStores, lanes: int) -> None:
        self._stores = stores
        self._first = lanes * _APART

    def open(self, lane: int) -> MemoryStore:
        """Open a lane's store, see `MemoryStores.open`."""
        return self._stores.open(self._first + lane)

    def kept(self) -> tuple[int, ...]:
        """The lanes that have a store."""
        return tuple(n - self._first for n in self._stores.kept() if 0 <= n - self._first < _APART)

    def crash(self, lane: int, *, lose_batches: int = 0) -> None:
        """Crash a lane's store, see `MemoryStores.crash`."""
        self._stores.crash(self._first + lane, lose_batches=lose_batches)

    def damage(self, lane: int) -> None:
        """Make a lane's store unreadable, see `MemoryStores.damage`."""
        self._stores.damage(self._first + lane)

    def destroy(self, lane: int) -> None:
        """Remove a lane's store, see `MemoryStores.destroy`."""
        self._stores.destroy(self._first + lane)


def own_tasks(loop: SimulatedLoop) -> None:
    """Make every new task belong to the process that creates it."""

    def make(loop: Any, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **more)
        if (process := _running.get()) is not None:
            process.adopt(task)
        return task

    loop.set_task_factory(make)


class Machine:
    """A machine that runs one worker process at a time. Its disk and its clock outlive the process.

    Attributes:
        is_frozen: whether the process is stopped, without noticing it.
        is_cut_off: whether requests get no answer.
        is_refused: whether connections are refused.
        is_deaf: whether the machine and the group are cut off from each other; other requests are answered.
        slowness: additional seconds for each request and for each answer.
        per_record: additional seconds for each sent record.
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
        """Whether a worker runs here that the group hears from."""
        alive = self.process is not None and self.process.is_alive
        return alive and not (self.is_frozen or self.is_cut_off or self.is_refused or self.is_deaf)

    def directory(self, lanes: int) -> Directory:
        """The stores for this lane count."""
        return Directory(self.stores, lanes)

    def freeze(self) -> None:
        """Stop the process as SIGSTOP does."""
        self.is_frozen = True
        self._goes.clear()

    def thaw(self) -> None:
        """Let a frozen process continue."""
        self.is_frozen = False
        self._goes.set()

    def kill(self) -> None:
        """Kill the process. Its stores remain open until `crash` is called for them."""
        if self.process is not None:
            self.process.kill()
        self.process = None
        self.thaw()

    def is_running(self, process: Process) -> bool:
        """Whether the process is neither frozen nor dead."""
        return self._goes.is_set() and process.is_alive

    async def runs(self, process: Process) -> None:
        """Wait while the process is frozen, or forever if it is dead."""
        while not self._goes.is_set():
            await self._goes.wait()
        if not process.is_alive:
            await asyncio.get_running_loop().create_future()


class MachineClock(LoopClock):
    """A machine's clock. Tasks that sleep on a frozen machine wake up once it continues."""

    def __init__(self, machine: Machine, loop: SimulatedLoop) -> None:
        super().__init__(loop)
        self._machine = machine
        self.skew = 0.0

    def now(self) -> float:
        """Seconds since the epoch on this machine, which may be wrong by `skew`."""
        return super().now() + self.skew

    async def sleep(self, seconds: float) -> None:
        """Wait. Jumps of the machine's clock do not matter, as with a monotonic clock."""
        await asyncio.sleep(max(0.0, seconds))
        process = self._machine.process
        if process is not None and not self._machine.is_running(process):
            await self._machine.runs(process)


class HereClock:
    """The clock of the machine that the current task runs on; outside of all machines, the world's clock."""

    def __init__(self, world: LoopClock) -> None:
        self._world = world

    def now(self) -> float:
        """Seconds since the epoch, on the current machine."""
        return self._here().now()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait."""
        return self._here().sleep(seconds)

    def _here(self) -> LoopClock:
        process = running()
        return self._world if process is None else process.machine.clock


@dataclass
class Outside:
    """An external service that handlers call, such as a payment gateway.

    Attributes:
        is_down: whether every request fails.
        is_healed: whether messages that failed temporarily now succeed.
    """

    is_down: bool = False
    is_healed: bool = False

    async def sleep(self, seconds: float) -> None:
        """Wait as long as a request takes, and until the calling process is not frozen."""
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
    """Ignore a reached point."""


class Network:
    """The cluster as one process sees it: requests take time, and may get no answer.

    `reach` is called with the name of each request outside a transaction, before it is made. `opens` is
    called with the id of each producer that is about to be created.
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
        """Make a request. Raises the error from `lost` if no answer comes in time."""
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
        """A producer that has not been started yet."""
        self._opens(transactional_id)
        return _Producer(self, self._cluster.transactions(transactional_id), transactional_id)

    async def reader(self) -> Reader:
        """A reader without assigned partitions."""
        return _Reader(self, await self._ask(self._cluster.reader, "reader"))

    def __getattr__(self, name: str) -> Any:
        question = getattr(self._cluster, name)

        async def ask(*asked: Any) -> Any:
            return await self._ask(lambda: question(*asked), name)

        return ask

    async def _ask(self, question: Callable[[], Awaitable[T]], name: str) -> T:
        return await self.request(question, lambda: ClusterUnavailable("simulated: no answer"), name)


#: Possible network delays of a request or an answer, in seconds.
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
