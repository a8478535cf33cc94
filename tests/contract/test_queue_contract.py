"""What those who enqueue and handle rely on in a queue, held by the one in memory and by PostgreSQL alike."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from streams.errors import PermanentError
from streams.model.envelope import TRACEPARENT
from streams.model.message import Message
from streams.postgres import Database, Job, Queue, QueueOptions, QueueWorker
from streams.postgres.queue.operations import discard_jobs, list_jobs, retry_jobs
from streams.saga.messages import Command, Reply
from streams.testing.queue import MemoryQueue
from tests.queue_world import ParcelPacked


class Replied(Reply, frozen=True, kw_only=True):
    TOPIC = "post.saga.replies"


class SendParcel(Command, frozen=True, kw_only=True):
    TOPIC = "post.commands.send"
    REPLY = Replied
    weight: int


class Broke(Exception):
    pass


class Steady(QueueOptions):
    def pause(self, retry: int) -> float:
        return 30.0


OPTIONS = Steady()


class _Handling:
    """A queue and its worker; `fails` has the parcels whose handler raises, `seen` what it has been given."""

    transaction: Callable[[], AbstractAsyncContextManager[Any]]
    enqueue: Callable[..., Awaitable[int]]

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.seen: list[str] = []
        self.jobs: list[Job] = []
        self.fails: dict[str, BaseException] = {}

    async def handle(self, _connection: object, job: Job) -> None:
        if job.topic == ParcelPacked.TOPIC:
            parcel = self.queue.decode(job, ParcelPacked).parcel
            if parcel in self.fails:
                await self.fail(self.fails[parcel])
            self.seen.append(parcel)
        self.jobs.append(job)

    async def fail(self, error: BaseException) -> None:
        raise error

    async def put(self, *messages: Message, **how: Any) -> list[int]:
        async with self.transaction() as connection:
            return [await self.enqueue(connection, message, **how) for message in messages]

    async def roll_back(self, message: Message) -> None:
        async with self.transaction() as connection:
            await self.enqueue(connection, message)
            raise Broke


class MemoryWorld(_Handling):
    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self.time = time.time()
        self.memory = MemoryQueue(queue, self.handle, options=OPTIONS, now=lambda: self.time)
        self.transaction, self.enqueue = self.memory.transaction, self.memory.enqueue

    async def work(self) -> int:
        return await self.memory.work_off()

    async def wait(self, seconds: float) -> None:
        self.time += seconds

    async def listed(self) -> list[tuple[str, str, int]]:
        return [(self.queue.decode(j, ParcelPacked).parcel, state, j.retry) for state, j in self.memory.jobs]

    async def failed(self) -> list[int]:
        return [job.id for state, job in self.memory.jobs if state == "failed"]

    async def retry(self, *numbers: int) -> list[int]:
        return self.memory.retry(*numbers)

    async def discard(self, *numbers: int) -> list[int]:
        return self.memory.discard(*numbers)


class PostgresWorld(_Handling):
    def __init__(self, queue: Queue, database: Database, options: QueueOptions = OPTIONS) -> None:
        super().__init__(queue)
        self.database = database
        self.transaction, self.enqueue = database.transaction, queue.enqueue
        self.worker = QueueWorker(database, queue, self.handle, options=options)

    async def work(self) -> int:
        return await self.worker.work_off()

    async def wait(self, seconds: float) -> None:
        await self.database.pool.execute("UPDATE queue_job SET due = due - $1 * interval '1 s'", seconds)

    async def listed(self) -> list[tuple[str, str, int]]:
        async with self.database.acquire() as connection:
            rows = await connection.fetch("SELECT payload, state, retry FROM queue_job ORDER BY id")
        return [(json.loads(row["payload"])["parcel"], row["state"], row["retry"]) for row in rows]

    async def failed(self) -> list[int]:
        async with self.database.acquire() as connection:
            return [job["id"] for job in await list_jobs(connection, self.queue.name, state="failed")]

    async def retry(self, *numbers: int) -> list[int]:
        async with self.database.acquire() as connection:
            return await retry_jobs(connection, self.queue.name, numbers)

    async def discard(self, *numbers: int) -> list[int]:
        async with self.database.acquire() as connection:
            return await discard_jobs(connection, self.queue.name, numbers)


World = MemoryWorld | PostgresWorld


@asynccontextmanager
async def world_of(url: str, queue: Queue) -> AsyncIterator[World]:
    if not url:
        yield MemoryWorld(queue)
        return
    async with Database(url) as database:
        yield PostgresWorld(queue, database)


@pytest.fixture
async def world(url_or_memory: str) -> AsyncIterator[World]:
    async with world_of(url_or_memory, Queue("parcels")) as world:
        yield world


@pytest.fixture
async def in_order(url_or_memory: str) -> AsyncIterator[World]:
    async with world_of(url_or_memory, Queue("parcels", ordered=True)) as world:
        yield world


def parcel(name: str, customer: str = "ada") -> ParcelPacked:
    return ParcelPacked(parcel=name, customer=customer)


async def test_a_job_is_done_and_gone(world: World) -> None:
    numbers = await world.put(parcel("a"), parcel("b"))
    assert numbers == sorted(numbers)
    assert await world.work() == 2
    assert (world.seen, await world.listed()) == (["a", "b"], [])
    assert await world.work() == 0


async def test_what_is_rolled_back_was_never_enqueued(world: World) -> None:
    with pytest.raises(Broke):
        await world.roll_back(parcel("a"))
    assert await world.work() == 0


async def test_a_job_has_the_envelope_of_a_message_on_kafka(world: World) -> None:
    await world.put(
        parcel("a"), message_id="m-1", correlation_id="o-1", causation_id="m-0", traceparent="00-aa-bb-01",
        partition=3,
    )  # fmt: skip
    await world.work()
    (job,) = world.jobs
    envelope = job.envelope
    assert (envelope.id, envelope.type, envelope.source) == ("m-1", ParcelPacked.TOPIC, "parcels")
    assert (envelope.correlation_id, envelope.causation_id) == ("o-1", "m-0")
    assert (envelope.headers["ce_subject"], envelope.headers[TRACEPARENT]) == (b"ada", b"00-aa-bb-01")
    assert (job.kind, job.topic, job.partition, job.retry) == ("event", ParcelPacked.TOPIC, 3, 0)


async def test_commands_and_replies_are_kinds_of_their_own(world: World) -> None:
    await world.put(
        SendParcel(saga_id="order:17", step="ship", command_id="c-1", attempt=1, expires=0.0, weight=3),
        Replied(saga_id="order:17", step="ship", command_id="c-1", outcome="success"),
    )
    await world.work()
    found = [(job.kind, job.topic) for job in world.jobs]
    assert found == [("command", SendParcel.TOPIC), ("reply", Replied.TOPIC)]
    assert world.queue.decode(world.jobs[0], SendParcel).weight == 3


async def test_a_failed_try_waits_and_is_done_later(world: World) -> None:
    world.fails["a"] = Broke("no stamp")
    await world.put(parcel("a"), parcel("b"))
    await world.work()
    assert await world.listed() == [("a", "waiting", 1)]
    assert world.seen[-1] == "b"
    world.fails.clear()
    assert await world.work() == 0
    await world.wait(30)
    assert await world.work() == 1
    assert (world.seen[-1], await world.listed()) == ("a", [])


async def test_after_three_tries_a_job_stays_while_others_go_on(world: World) -> None:
    world.fails["a"] = Broke("no stamp")
    await world.put(parcel("a"))
    for _ in range(3):
        await world.work()
        await world.wait(30)
    await world.put(parcel("b"))
    await world.work()
    assert world.seen == ["b"]
    assert await world.listed() == [("a", "failed", 3)]


@pytest.mark.promise("whatever-is-raised")
@pytest.mark.parametrize("how", ["raised", "in a task", "in a group"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit("no license"),
        KeyboardInterrupt("a library"),
        GeneratorExit("closed"),
        BaseExceptionGroup("both", [SystemExit(1)]),
        asyncio.CancelledError("by nobody"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_is_no_exception_fails_its_job_alone(
    world: World, error: BaseException, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(raised: BaseException) -> None:
        async def work() -> None:
            raise raised

        if how == "raised":
            raise raised
        if how == "in a task":
            await asyncio.create_task(work())
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
        raise ValueError("a group ignores those that were cancelled")

    monkeypatch.setattr(world, "fail", fail)
    world.fails["a"] = error
    await world.put(parcel("a"), parcel("b"))
    await world.work()
    assert (world.seen, await world.listed()) == (["b"], [("a", "waiting", 1)])


@pytest.mark.promise("whatever-is-raised")
async def test_a_job_that_cancels_its_task_fails_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_raised: BaseException) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    monkeypatch.setattr(world, "fail", fail)
    world.fails["a"] = ValueError()
    await world.put(parcel("a"), parcel("b"))
    await world.work()
    assert (world.seen, await world.listed()) == (["b"], [("a", "waiting", 1)])


async def test_a_permanent_error_is_not_tried_again(world: World) -> None:
    world.fails["a"] = PermanentError("no such street")
    await world.put(parcel("a"))
    await world.work()
    assert await world.listed() == [("a", "failed", 1)]


async def test_an_action_without_a_handler_is_a_permanent_error(world: World) -> None:
    await world.put(parcel("a"), action="shred")
    await world.work()
    assert await world.listed() == [("a", "failed", 1)]


async def test_a_delayed_job_waits_until_it_is_due(world: World) -> None:
    await world.put(parcel("a"), delay=60.0)
    assert await world.work() == 0
    await world.wait(61)
    assert await world.work() == 1


@pytest.mark.promise("queue-order")
async def test_a_failed_job_holds_later_ones_of_its_key(in_order: World) -> None:
    world = in_order
    world.fails["a"] = Broke("no stamp")
    await world.put(parcel("a"), parcel("b"), parcel("x", customer="bob"))
    await world.work()
    assert world.seen[-1:] == ["x"]
    await world.put(parcel("c"))
    assert await world.work() == 0
    world.fails.clear()
    await world.wait(30)
    await world.work()
    assert (world.seen[-3:], await world.listed()) == (["a", "b", "c"], [])


async def test_due_jobs_behind_a_waiting_one_keep_no_others(in_order: World) -> None:
    world = in_order
    world.fails["a"] = Broke("no stamp")
    await world.put(parcel("a"))
    await world.work()
    await world.put(*(parcel(f"b{number}") for number in range(3 * OPTIONS.batch)), delay=10.0)
    await world.put(parcel("x", customer="bob"), delay=11.0)
    await world.wait(20)
    await world.work()
    assert world.seen == ["x"]
    world.fails.clear()
    await world.wait(30)
    await world.work()
    assert world.seen[1:] == ["a", *(f"b{number}" for number in range(3 * OPTIONS.batch))]


@pytest.mark.promise("queue-order")
@pytest.mark.parametrize(("decision", "handled"), [("retry", ["a", "b"]), ("discard", ["b"])])
async def test_a_marked_job_holds_its_key_until_somebody_decides(
    in_order: World, decision: str, handled: list[str]
) -> None:
    world = in_order
    world.fails["a"] = PermanentError("no such street")
    await world.put(parcel("a"), parcel("b"))
    await world.work()
    assert [each[0] for each in await world.listed()] == ["a", "b"]
    world.fails.clear()
    world.seen.clear()
    decide, failed = getattr(world, decision), await world.failed()
    assert await decide(*failed, 99_999) == failed
    assert await decide(*failed) == []
    await world.work()
    assert (world.seen, await world.listed()) == (handled, [])
