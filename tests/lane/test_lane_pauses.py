"""Operators pause a handler: what comes in waits, in order, whatever crashes; others of the topic go on."""

from itertools import product
from typing import Any

import pytest
from lane_checker import check, check_store, counts
from lane_desk import order_of
from lane_failing import LATER, all_count, finish, letters_of, nothing_waits, pass_time, settled, with_header
from lane_pausing import COUNT, KEYS, asked, commanded, reasons, some, states, told
from lane_scenes import POINTS, failing_counter, finished, opened, retrying_counter, stopped_empty
from lane_workloads import Workload, reminding
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs

from streams.engine.staging.changes import QUEUES_BY_DUE
from streams.model.operations import HandlerCommand, PauseState
from streams.testing.faults import ScriptedFaults


async def paused(world: World, **options: Any) -> tuple[Workload, Running]:
    work = await retrying_counter(world, **options)
    lane = await world.open()
    await asked(world, HandlerCommand.PAUSE)
    return work, lane


async def come(world: World, work: Workload, lane: Running, *events: Post) -> None:
    await world.post(*events)
    await settled(world, work, lane)


@pytest.mark.promise("pauses")
async def test_what_comes_for_a_paused_handler_waits(world: World) -> None:
    work, lane = await paused(world, tallied=True)
    events = some(world, work, range(4))
    await come(world, work, lane, *events)
    await world.passes(5.0, real=0.5)
    assert work.hooks.calls == []
    assert await counts(world, "tallies") == dict.fromkeys(KEYS, 4)
    assert await reasons(world) == {"paused": len(KEYS)}
    assert await states(world) == {0: PauseState.PAUSED, 1: PauseState.PAUSED}

    await asked(world, HandlerCommand.RESUME)
    await all_count(world, lane, 2 * len(events))
    await finish(world, work, lane, events)
    for key in KEYS:
        assert await order_of(world, work, key) == list(range(4))
    assert await states(world) == {}
    found = [(what, how) for what, _, how in await told(world)]
    assert found == [*[("pause", "paused")] * 2, *[("resume", "running, it was paused")] * 2]


SETTLED = (HandlerCommand.PAUSE, HandlerCommand.RESUME, HandlerCommand.DRAIN)
ON_KAFKA = (pytest.mark.stack, pytest.mark.landing)


@pytest.mark.promise("pauses")
@pytest.mark.parametrize(
    ("world", "kind", "point", "disk"),
    [
        *product(["fake"], SETTLED, POINTS, ["kept", "lost"]),
        pytest.param("kafka", HandlerCommand.PAUSE, "sent", "lost", marks=ON_KAFKA),
    ],
    indirect=["world"],
)
async def test_a_lane_killed_while_it_settles_a_command_is_continued(
    world: World, kind: HandlerCommand, point: str, disk: str
) -> None:
    """By another lane, on the same machine or on another one."""
    work = await retrying_counter(world)
    events = some(world, work, range(3))
    lane = await world.open()
    await come(world, work, lane, *events[:4])
    if kind is HandlerCommand.RESUME:
        await asked(world, HandlerCommand.PAUSE)
    await come(world, work, lane, *events[4:12])
    world.faults.kill_at(point, nth=world.faults.reached[point] + 1)
    await world.post(*commanded(world, kind), *events[12:])
    await lane.killed()
    assert world.faults.pending == []
    stores = world.machine if disk == "kept" else world.stores()
    world.faults = ScriptedFaults()
    lane = await world.open(stores=stores)
    await world.settled(work.source, world.app.layout.operations)
    ended = {HandlerCommand.PAUSE: PauseState.PAUSED, HandlerCommand.DRAIN: PauseState.DRAINED}
    if kind in ended:
        await world.passes(3.0, real=0.3)
        assert set((await states(world)).values()) == {ended[kind]}
        before = len(work.hooks.calls)
        await world.post(*(more := some(world, work, range(3, 4))))
        events += more
        await settled(world, work, lane)
        assert len(work.hooks.calls) == before
        await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: not lane.lane.gates[COUNT].queues and not lane.lane.backlog)
    await stopped_empty(world, work, lane)
    await check(world, work, events)
    await check_store(world, stores=stores)
    await nothing_waits(world)
    assert await states(world) == {}
    assert [where for what, where, _ in await told(world) if what == kind] == [0, 1], "each once"


@pytest.mark.promise("pauses")
async def test_a_pause_holds_in_lanes_of_another_count(fake: FakeWorld) -> None:
    work, lane = await paused(fake, partitions=4)
    events = some(fake, work, range(2))
    await fake.post(*events)
    await stopped_empty(fake, work, lane)
    two = fake.cut_into(work, lanes=2)
    stores = fake.stores()
    with capture_logs() as logs:
        lanes = [await fake.open(number, app=two, stores=stores) for number in range(2)]
    warned = [each for each in logs if each["event"] == "handler_is_paused"]
    assert [(each["handler"], each["partitions"]) for each in warned] == [(COUNT, {"paused": 2})] * 2
    more = some(fake, work, range(2, 3))
    await fake.post(*more)
    await fake.settled(work.source)
    await pass_time(fake, 2.0)
    assert work.hooks.calls == []
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: sum(each.handled for each in lanes) >= len(events + more))
    await fake.until(lambda: not any(each.lane.gates[COUNT].queues or each.lane.backlog for each in lanes))
    await fake.settled(work.source)
    for each in lanes:
        await each.stop()
    await check(fake, work, events + more)
    await nothing_waits(fake)


@pytest.mark.promise("pauses")
async def test_a_command_that_comes_twice_is_settled_once(fake: FakeWorld) -> None:
    await retrying_counter(fake, tallied=True)
    lane = await fake.open()
    await asked(fake, HandlerCommand.PAUSE, operation_id="first")
    await asked(fake, HandlerCommand.PAUSE, operation_id="first")
    assert lane.lane.counters.duplicates == 2
    await asked(fake, HandlerCommand.PAUSE, operation_id="second", who="bob")
    await fake.until(lambda: not lane.lane.backlog)
    assert {pause.who for pause in lane.lane.gates[COUNT].pauses.values()} == {"ann"}
    assert [how for _, _, how in await told(fake)] == ["paused"] * 2 + ["already paused"] * 2
    await asked(fake, HandlerCommand.RESUME, operation_id="first")
    await asked(fake, HandlerCommand.PAUSE, "bench.tally", operation_id="first")
    await asked(fake, HandlerCommand.PAUSE, operation_id="first")
    assert await states(fake) == {}, "the first one is an old command"
    assert (len(await states(fake, "bench.tally")), lane.lane.counters.duplicates) == (2, 4)
    await lane.stop()
    await check_store(fake)


@pytest.mark.parametrize(
    "value",
    [
        b'{"kind": "pause"}',
        b'{"kind": "pause", "handler": "bench.count", "who": "ann", "why": "", "at_ms": 4611686018427387904}',
    ],
)
async def test_a_command_unreadable_or_of_no_handler_changes_nothing(fake: FakeWorld, value: bytes) -> None:
    work = await retrying_counter(fake)
    lane = await fake.open()
    (post,) = commanded(fake, HandlerCommand.PAUSE, operation_id="cut off", partitions=[0])
    with capture_logs() as logs:
        await fake.post(post._replace(value=value))
        await asked(fake, HandlerCommand.PAUSE, "bench.nobody")
    assert [e["event"] for e in logs if e["event"].endswith("unreadable")] == ["operation_unreadable"]
    assert {how for _, _, how in await told(fake)} == {"refused: there is no handler bench.nobody"}
    await fake.post(*(events := some(fake, work, range(1))))
    await all_count(fake, lane, len(events))
    await finish(fake, work, lane, events)


async def test_a_pause_of_one_partition_leaves_the_others(fake: FakeWorld) -> None:
    work, _ = await failing_counter(fake, {(key, 0): 1 for key in KEYS}, retry=LATER)
    running = {key for key in KEYS if fake.app.layout.partition_of(key.encode()) == 1}
    held = sorted(set(KEYS) - running)
    assert running
    before = some(fake, work, range(1), held[0])
    lane = await opened(fake, *before)
    await fake.until(lambda: lane.lane.counters.retries == 1)
    await asked(fake, HandlerCommand.PAUSE, partitions=[0])
    events = [event for event in some(fake, work, range(2)) if event not in before]
    await fake.post(*events)
    await fake.until(lambda: len(work.hooks.calls) == 1 + 3 * len(running))
    await settled(fake, work, lane)
    commits = lane.lane.commits
    await pass_time(fake, 3.0)
    assert lane.lane.commits == commits, "what is held does not even set out"
    assert {key for key, _ in work.hooks.calls} == {held[0], *running}
    assert await counts(fake) == dict.fromkeys(running, 2)
    await asked(fake, HandlerCommand.RESUME)
    await finished(fake, work, lane, before + events, lambda: len(work.hooks.calls) == 3 * len(KEYS))


async def test_nobody_looks_at_what_waits_for_a_paused_handler(fake: FakeWorld) -> None:
    work, lane = await paused(fake)
    events = some(fake, work, range(1))
    await come(fake, work, lane, *events)
    store: Any = lane.lane.store
    looked: list[str] = []
    scan = store.scan

    def spied(table: str, **bounds: Any) -> Any:
        looked.append(table)
        return scan(table, **bounds)

    store.scan = spied
    await pass_time(fake, 2.0)
    assert looked, "the timers are looked at meanwhile"
    assert QUEUES_BY_DUE not in looked
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: len(work.hooks.calls) == len(KEYS))
    assert QUEUES_BY_DUE in looked
    await finish(fake, work, lane, events)
    changelog = fake.app.layout.changelog("lane")
    queues = [record for record in (await fake.records(changelog)) if record.key[:1] == b"q"]
    assert [record.value for record in queues].count(None) == len(KEYS)
    assert len(queues) == 2 * len(KEYS), "each begins and ends: a resume rewrites none"


async def test_more_than_may_wait_of_a_key_become_dead_letters(fake: FakeWorld) -> None:
    work, lane = await paused(fake, max_waiting=3)
    events = some(fake, work, range(5), "a")
    await come(fake, work, lane, *events)
    assert [dict(letter)["ce_id"] for letter in await letters_of(fake, work)] == [b"a-3", b"a-4"]
    await asked(fake, HandlerCommand.RESUME)
    await finished(fake, work, lane, events[:3], lambda: len(work.hooks.calls) == 3)


async def test_timers_of_a_paused_handler_fire(fake: FakeWorld) -> None:
    work = reminding(fake.name)
    await fake.start(work)
    lane = await fake.open()
    due = fake.clock.now() + 1.0
    headers = with_header(Post("", 0, b"", b"", []), "ce_id", b"1").headers
    await fake.post(fake.raw(work.asked.TOPIC, "a", b'{"k":"a","due":%f}' % due, headers))
    await fake.settled(work.asked.TOPIC)
    await asked(fake, HandlerCommand.PAUSE, "timers.remind")
    await asked(fake, HandlerCommand.PAUSE, "timers.ring")
    await pass_time(fake, 3.0)
    assert lane.lane.counters.timers == 1
    assert await counts(fake, "rings") == {}
    await asked(fake, HandlerCommand.RESUME, "timers.ring")
    await fake.until(lambda: not lane.lane.gates["timers.ring"].queues and not lane.lane.backlog)
    assert await counts(fake, "rings") == {"a": 1}
    await lane.stop()
