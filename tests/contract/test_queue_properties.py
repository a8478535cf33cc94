"""Whoever enqueues, breaks, crashes, comes too late, retries or discards, whenever: no job of a queue is lost
or done twice, those of a key are done in order, and one that has failed stays until somebody settles it.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from structlog.testing import capture_logs

from streams.errors import PermanentError
from streams.postgres import Connection, Database, Job
from tests.contract.test_queue_contract import Broke, MemoryWorld, PostgresWorld, Steady, World
from tests.effort import examples, is_all
from tests.queue_world import IN_ORDER, LOG, ParcelPacked, done, note

pytestmark = pytest.mark.promise(
    "queue-once",
    "jobs put, rolled back, delayed, broken, retried and discarded at any time, among workers "
    "that crash or come back after their lease",
)

T = TypeVar("T")
TRIES = 3
LONG = 60.0
TABLES = "done, queue_job, queue_lease, queue_wake"


class QueueMachine(RuleBasedStateMachine):
    """Knows which parcels were enqueued, in which order, and which were discarded."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.names: dict[int, str] = {}
        self.keys: dict[str, str] = {}
        self.discarded: set[str] = set()
        self.failed: set[str] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with capture_logs():
            return self.runner.run(work)

    async def done(self) -> list[str]:
        raise NotImplementedError

    @rule(customers=st.lists(st.sampled_from("abc"), min_size=1, max_size=4), waits=st.booleans())
    def put(self, customers: list[str], *, waits: bool) -> None:
        names = [f"p-{len(self.keys) + place}" for place in range(len(customers))]
        self.keys |= zip(names, customers, strict=True)
        parcels = [ParcelPacked(parcel=name, customer=self.keys[name]) for name in names]
        delay = LONG if waits else 0.0
        self.names |= zip(self.run(self.world.put(*parcels, delay=delay)), names, strict=True)

    @rule(customer=st.sampled_from("abc"))
    def roll_back(self, customer: str) -> None:
        with pytest.raises(Broke):
            self.run(self.world.roll_back(ParcelPacked(parcel="never", customer=customer)))

    @rule(number=st.integers(0, 30), for_good=st.booleans())
    def break_one(self, number: int, *, for_good: bool) -> None:
        self.world.fails[f"p-{number}"] = PermanentError("no such street") if for_good else Broke("no stamp")

    @rule()
    def mend(self) -> None:
        self.world.fails.clear()

    @rule()
    def work(self) -> None:
        self.run(self.world.work())

    @rule()
    def wait(self) -> None:
        self.run(self.world.wait(LONG))

    @rule(place=st.integers(0, 5))
    def retry(self, place: int) -> None:
        numbers = self.run(self.world.failed())[place:][:1]
        assert self.run(self.world.retry(*numbers)) == numbers
        self.failed -= {self.names[number] for number in numbers}

    @rule(places=st.sets(st.integers(0, 9), max_size=2))
    def discard(self, places: set[int]) -> None:
        """Any of them: not only those that have failed."""
        there = {name for name, *_ in self.run(self.world.listed())}
        numbers = [number for number, name in sorted(self.names.items()) if name in there]
        gone = self.run(self.world.discard(*(numbers[place] for place in places if place < len(numbers))))
        self.discarded |= {self.names[number] for number in gone}
        self.failed -= self.discarded

    @invariant()
    def each_job_is_there_or_done_once_or_discarded(self) -> None:
        listed = self.run(self.world.listed())
        had = [name for name, *_ in listed] + self.run(self.done()) + sorted(self.discarded)
        assert sorted(had) == sorted(self.keys)

    @invariant()
    def jobs_of_a_key_are_done_in_order(self) -> None:
        numbers = {name: number for number, name in self.names.items()}
        there = {name for name, *_ in self.run(self.world.listed())}
        of_key = defaultdict(list)
        for name in self.run(self.done()):
            of_key[self.keys[name]].append(numbers[name])
        for key, found in of_key.items():
            assert found == sorted(found)
            assert all(found[-1] < numbers[name] for name in there if self.keys[name] == key)

    @invariant()
    def what_has_failed_stays_until_somebody_settles_it(self) -> None:
        listed = {name: (state, retry) for name, state, retry in self.run(self.world.listed())}
        assert all(listed[name][0] == "failed" for name in self.failed)
        assert all(retry <= TRIES for _, retry in listed.values())
        self.failed |= {name for name, (state, _) in listed.items() if state == "failed"}

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.run(self.settle())
                self.each_job_is_there_or_done_once_or_discarded()
                self.jobs_of_a_key_are_done_in_order()
        finally:
            self.run(self.end())
            self.runner.close()

    async def settle(self) -> None:
        """Nothing fails any more: all that is left is done."""
        self.world.fails.clear()
        await self.world.wait(LONG)
        await self.world.retry(*(await self.world.failed()))
        await self.world.work()
        assert await self.world.listed() == []

    async def end(self) -> None:
        pass


class MemoryQueueMachine(QueueMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryWorld(IN_ORDER)
        self.world = self.memory

    async def done(self) -> list[str]:
        return self.memory.seen


class NotingWorld(PostgresWorld):
    async def handle(self, connection: Connection, job: Job) -> None:  # type: ignore[override]
        await note(connection, job)
        await super().handle(connection, job)


class PostgresQueueMachine(QueueMachine):
    """The real one, whose workers crash, oversleep and come back too late."""

    def __init__(self, url: str, batch: int) -> None:
        super().__init__()
        self.taken: list[tuple[int, Sequence[Job]]] = []
        self.run(self.open(url, batch))

    async def open(self, url: str, batch: int) -> None:
        self.database = await Database(url).open()
        await self.database.pool.execute(f"TRUNCATE {TABLES}")
        self.real = NotingWorld(IN_ORDER, self.database, Steady(batch=batch, tries=TRIES))
        self.world = self.real

    async def done(self) -> list[str]:
        return await done(self.database)

    @rule()
    def take(self) -> None:
        lease = secrets.randbits(62)
        jobs = self.run(self.real.worker._take(lease))
        self.taken += [(lease, jobs)] if jobs else []

    @rule()
    def crash(self) -> None:
        if self.taken:
            self.run(self.die(*self.taken.pop()))

    async def die(self, lease: int, jobs: Sequence[Job]) -> None:
        async with self.database.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            for job in jobs:
                await note(connection, job)
            await connection.fetchval("SELECT queue_finish($1, $2)", lease, [job.id for job in jobs])
            connection.terminate()

    @rule()
    def come_back(self) -> None:
        """A worker does what it took once, whether its lease is over or not."""
        if self.taken:
            self.run(self.real.worker._handle(*self.taken.pop(0)))

    @rule()
    def pass_leases(self) -> None:
        self.run(self.database.pool.execute("UPDATE queue_lease SET until = now() - interval '1 second'"))

    async def settle(self) -> None:
        await self.database.pool.execute("UPDATE queue_lease SET until = now() - interval '1 second'")
        await self.world.work()
        await super().settle()

    async def end(self) -> None:
        await self.database.close()


def machine_settings(count: int) -> settings:
    return settings(
        max_examples=examples(count),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def test_the_queue_in_memory_loses_nothing_and_does_nothing_twice() -> None:
    run_state_machine_as_test(MemoryQueueMachine, settings=machine_settings(60))  # type: ignore[no-untyped-call]


@pytest.mark.stack
@pytest.mark.parametrize("batch", [1, 3])
def test_the_queue_in_postgresql_loses_nothing_and_does_nothing_twice(postgres_url: str, batch: int) -> None:
    async def prepare() -> None:
        async with Database(postgres_url) as database:
            await database.pool.execute(LOG)

    asyncio.run(prepare())
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: PostgresQueueMachine(postgres_url, batch), settings=machine_settings(100 if is_all() else 8)
    )
