"""Deleted rows do not come back: a copy that may have missed deletions is rebuilt, whoever has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from lane_checker import check_store, counts
from lane_workloads import Reminding, counting, reminding
from lane_worlds import FakeWorld, Running, World
from test_lane_timers import asking_for

import streams.engine.life.standby
from streams.engine.life.standby import HEARD, Standby
from streams.engine.staging.changes import TIMERS, TIMERS_BY_DUE
from streams.ports import TP, Batch, Ports
from streams.testing.clients import FakeReader
from streams.testing.faults import NoFaults
from streams.testing.loop import SimulatedLoop
from tests.effort import examples

pytestmark = pytest.mark.promise(
    "deleted-rows", "any order of writes, reads, sleeps, restarts and compactions, on the fake broker"
)


class Freezer:
    """The cluster as one worker sees it: while frozen, no answer reaches it, and so it does nothing."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._goes = asyncio.Event()
        self._goes.set()
        #: Fetches that may still be made; None for any number.
        self.fetches: int | None = None

    def freeze(self) -> None:
        self._goes.clear()

    def thaw(self) -> None:
        self._goes.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def end_offsets(self, tps: Any) -> Any:
        await self._goes.wait()
        return await self._cluster.end_offsets(tps)

    async def reader(self) -> Any:
        return FrozenReader(self, await self._cluster.reader())

    async def pass_by(self) -> None:
        """Wait until this worker runs, and has a fetch left."""
        while True:
            await self._goes.wait()
            if self.fetches is None or self.fetches > 0:
                break
            await asyncio.sleep(0.01)
        if self.fetches is not None:
            self.fetches -= 1


class FrozenReader:
    def __init__(self, freezer: Freezer, reader: Any) -> None:
        self._freezer = freezer
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        await self._freezer.pass_by()
        found: list[Batch] = await self._reader.fetch(max_records=max_records, timeout=0.0)
        return found


DAY = 86400.0


def follow(world: World, stores: Any, **more: Any) -> tuple[Standby, Freezer, asyncio.Task[None]]:
    freezer = Freezer(world.cluster)
    standby = Standby(world.app, 0, Ports(freezer, stores, world.clock, NoFaults()), **more)
    return standby, freezer, world.spawn(standby.run())


async def ended(world: World, standby: Standby, task: asyncio.Task[None]) -> None:
    standby.stop()
    await world.until(task.done)


async def ask(world: World, work: Reminding, number: int, due: float | None, key: str = "a") -> None:
    await world.post(asking_for(world, work, number, due, key=key))
    await world.settled(work.asked.TOPIC)


def compact(fake: FakeWorld, delete_retention: float) -> None:
    """Every changelog forgets what was deleted longer ago: its tombstones go."""
    for topic, table in fake.app.changelogs.items():
        if table != "inbox":
            fake.cluster.compact(topic, delete_retention=delete_retention)


def two_days_pass(fake: FakeWorld) -> None:
    fake.clock.set(fake.clock.now() + 2 * DAY)
    compact(fake, 0)


async def with_events(fake: FakeWorld, keys: Iterable[str], **options: Any) -> Running:
    await fake.start(work := counting(fake.name), partitions=1, **options)
    lane = await fake.open()
    await fake.post(*(fake.event(work, key, i) for i, key in enumerate(keys)))
    await fake.settled(work.source)
    return lane


def step(work: Callable[..., Coroutine[Any, Any, None]]) -> Any:
    @wraps(work)
    def done(self: Copies, **values: Any) -> None:
        self.runner.run(work(self, **values))

    return done


async def test_a_standby_is_as_fresh_as_what_brokers_have_told(fake: FakeWorld, monkeypatch: Any) -> None:
    """One that hears nothing of them does not know what it lacks, however well it stood before."""
    await fake.start(counting(fake.name), partitions=1)
    silence = inf
    monkeypatch.setattr(FakeReader, "silence", lambda _: silence)
    standby, _, _ = follow(fake, fake.stores())
    await fake.until(lambda: standby.store is not None)
    await fake.clock.advance(5)
    assert standby.fresh_at == 0
    silence = 0.5
    await fake.until(lambda: standby.fresh_at > 0)
    silence = HEARD
    at = standby.fresh_at
    await fake.clock.advance(60)
    assert standby.fresh_at == at
    assert fake.clock.now() - at >= 60
    standby.stop()


async def test_a_timer_deleted_while_a_standby_slept_does_not_ring(fake: FakeWorld) -> None:
    await fake.start(work := reminding(fake.name), partitions=1)
    standby, freezer, task = follow(fake, elsewhere := fake.stores())
    lane = await fake.open()
    await ask(fake, work, 1, fake.clock.now() + 60)
    written = sum([len(await fake.records(topic)) for topic in fake.app.changelogs])
    await fake.until(lambda: standby.records >= written)
    freezer.freeze()
    await fake.clock.advance(61)
    await fake.until(lambda: lane.handled == 2)
    await fake.settled(work.rang.TOPIC)
    two_days_pass(fake)
    freezer.thaw()
    await fake.clock.advance(10)
    await ended(fake, standby, task)
    await lane.stop()
    heir = await fake.open(stores=elsewhere)
    assert list(heir.lane.store.scan(TIMERS)) == []
    await fake.clock.advance(5)
    await heir.stop()
    assert await counts(fake, "rings") == {"a": 1}
    await check_store(fake, stores=elsewhere)


async def test_an_owner_frozen_after_its_commit_rebuilds_what_it_has(fake: FakeWorld) -> None:
    """It writes what was committed when it wakes: that is no sign of how old the rest of its copy is."""
    await fake.start(work := reminding(fake.name), partitions=1)
    lane = await fake.open()
    await ask(fake, work, 1, fake.clock.now() + 60)
    frozen = fake.faults.pause_at("committed", nth=fake.faults.reached["committed"] + 1)
    await fake.post(asking_for(fake, work, 2, None, key="b"))
    await fake.clock.advance(1)  # a lane may rest before its next transaction
    await frozen.reached()
    other = await fake.open(stores=fake.stores())
    await fake.clock.advance(61)
    await fake.until(lambda: other.handled == 1)
    await fake.settled(work.rang.TOPIC)
    await other.stop()
    two_days_pass(fake)
    frozen.resume()
    await fake.post(asking_for(fake, work, 3, None, key="c"))
    await fake.until(lambda: lane.lane.fenced == 1 and lane.lane.state == "open")
    await fake.settled(work.asked.TOPIC)
    await fake.clock.advance(5)
    await lane.stop()
    assert await counts(fake, "rings") == {"a": 1}
    await check_store(fake)


async def test_dropping_stale_index_entries_makes_no_copy_seem_current(fake: FakeWorld) -> None:
    await fake.start(work := reminding(fake.name), partitions=1)
    lane = await fake.open()
    for i, due in enumerate((60, 10 * DAY)):
        await ask(fake, work, i, fake.clock.now() + due)
    assert len(list(lane.lane.store.scan(TIMERS_BY_DUE))) == 2
    was_current = lane.lane.store.current_at()
    await fake.clock.advance(61)
    assert len(list(lane.lane.store.scan(TIMERS_BY_DUE))) == 1
    assert lane.lane.store.current_at() == was_current


async def test_what_a_lagging_standby_writes_makes_it_no_more_current(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.engine.life.standby, "FETCH_RECORDS", 1)
    await fake.start(work := counting(fake.name), partitions=1)
    began = fake.clock.now()
    standby, freezer, task = follow(fake, elsewhere := fake.stores())
    freezer.fetches = 0
    await fake.turns()
    await fake.open()
    await fake.post(*(fake.event(work, "a", i) for i in range(8)))
    await fake.settled(work.source)
    for hour in range(1, 4):
        fake.clock.set(began + hour * 3600)
        freezer.fetches = 1
        await fake.until(lambda: freezer.fetches == 0)
    await ended(fake, standby, task)
    store = elsewhere.open(0)
    assert any(store.position(TP(topic, 0)) for topic in fake.app.changelogs)
    assert store.current_at() < began + 60
    store.close()


async def test_a_standby_knows_how_far_it_is_behind(fake: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.engine.life.standby, "FETCH_RECORDS", 1)
    await with_events(fake, "a" * 8)
    standby, freezer, task = follow(fake, fake.stores())
    freezer.fetches = 2
    await fake.until(lambda: freezer.fetches == 0)
    total, _ = standby.to_copy
    assert 0 < standby.behind < total
    freezer.fetches = None
    await fake.until(lambda: standby.behind == 0)
    await fake.until(lambda: standby.to_copy[0] == 0)
    await ended(fake, standby, task)
    assert standby.behind is None


@pytest.mark.parametrize(
    ("yields", "least", "most"), [(False, 0, 2), (True, 20, 30)], ids=["alone", "a lane opens"]
)
async def test_a_far_standby_rests_only_while_a_lane_opens(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch, yields: bool, least: int, most: int
) -> None:
    lane = await with_events(fake, [f"key-{i}" for i in range(100)])
    await lane.stop()
    fetch, sleep, rests = FakeReader.fetch, fake.clock.sleep, []

    async def little(reader: FakeReader, *, max_records: int, timeout: float) -> Any:
        return await fetch(reader, max_records=min(max_records, 5), timeout=timeout)

    async def noted(seconds: float) -> None:
        rests.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(FakeReader, "fetch", little)
    monkeypatch.setattr(fake.clock, "sleep", noted)
    standby, _, task = follow(fake, fake.stores(), yields=lambda: yields)
    await fake.until(lambda: standby.behind == 0)
    assert standby.records >= 100
    assert least <= len(rests) <= most
    await ended(fake, standby, task)


async def test_a_busy_lane_s_standby_and_idle_owners_stay_current(fake: FakeWorld) -> None:
    """The standby is never at the end, but at where the end was a while ago."""
    await fake.start(work := counting(fake.name), partitions=1, delete_retention=80.0)
    standby, _, task = follow(fake, elsewhere := fake.stores())
    lane = await fake.open()
    for i in range(60):
        await fake.post(fake.event(work, "a", i))
        await fake.clock.advance(5)
    await ended(fake, standby, task)
    store = elsewhere.open(0)
    assert store.current_at() > fake.clock.now() - 40
    store.close()
    await fake.clock.advance(300)
    assert lane.lane.store.current_at() > fake.clock.now() - 20


@pytest.mark.parametrize(
    ("seconds", "retention", "kept"),
    [(-DAY, DAY, False), (-3600.0, DAY, True), (1.6, 3.0, False), (1.6, 3600.0, True)],
    ids=["clock set back a day", "an hour", "too old for kept deletions", "recent"],
)
async def test_a_store_too_old_or_of_another_time_is_rebuilt(
    fake: FakeWorld, seconds: float, retention: float, kept: bool
) -> None:
    lane = await with_events(fake, "a", delete_retention=retention)
    await lane.stop()
    store = fake.machine.open(0)
    store.apply([("counts", b"\0\0bogus", b"\0" * 8 + b'{"n":99}')], {})
    fake.clock.set(store.current_at() + seconds)
    store.close()
    lane = await fake.open()
    assert (lane.lane.recovered == 0) is kept
    assert (lane.lane.store.get("counts", b"\0\0bogus") is not None) is kept


KEYS = st.sampled_from(("a", "b", "c"))


class Copies(RuleBasedStateMachine):
    """Timers are set and cancelled while a standby reads as it can, sleeps and is started again, time passes
    and compaction goes by its rules: what the standby has in the end is what the changelogs say.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self.world = FakeWorld(self.runner.get_loop())
        self.asked = 0

    @initialize()
    @step
    async def start(self) -> None:
        self.work = reminding(self.world.name)
        await self.world.start(self.work, partitions=1, delete_retention=1000.0)
        self.elsewhere = self.world.stores()
        self.follow()
        self.lane = await self.world.open()

    def follow(self) -> None:
        self.standby, self.freezer, self.task = follow(self.world, self.elsewhere)
        self.freezer.fetches = 0

    @rule(key=KEYS, sets=st.booleans())
    @step
    async def ask(self, key: str, sets: bool) -> None:
        self.asked += 1
        await ask(self.world, self.work, self.asked, self.world.clock.now() + 1e9 if sets else None, key)

    @rule(seconds=st.sampled_from((10.0, 400.0, 1100.0)))
    @step
    async def time_passes(self, seconds: float) -> None:
        self.world.clock.set(self.world.clock.now() + seconds)
        await self.world.turns(20)

    @rule()
    def a_night_passes(self) -> None:
        self.compact()
        self.time_passes(seconds=1100.0)
        self.compact()

    @rule()
    def compact(self) -> None:
        compact(self.world, 1000.0)

    @rule(fetches=st.integers(1, 5))
    @step
    async def standby_reads(self, fetches: int) -> None:
        self.freezer.fetches = fetches
        await self.world.until(lambda: self.freezer.fetches == 0)

    @rule()
    @step
    async def standby_starts_again(self) -> None:
        await ended(self.world, self.standby, self.task)
        self.follow()

    @step
    async def end(self) -> None:
        if hasattr(self, "lane"):
            self.freezer.fetches = 60
            await self.world.until(lambda: self.freezer.fetches == 0)
            await ended(self.world, self.standby, self.task)
            await self.lane.stop()
            await check_store(self.world, stores=self.elsewhere, may_be_empty=True)
        await self.world.close()

    def teardown(self) -> None:
        self.end()
        self.runner.close()


Copies.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCopies = Copies.TestCase
