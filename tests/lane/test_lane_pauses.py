"""An operator pauses a handler: what comes in waits, in order, whatever crashes; others of the topic go on.
A drain works off what waits already, and then is a pause.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_desk import Broken, letter_ids, operated, operation, order_of
from lane_failing import (
    HOLDING,
    LATER,
    Failing,
    all_counted,
    finish,
    letters_of,
    nothing_waits,
    pass_time,
    settled,
    started,
    with_header,
)
from lane_pausing import COUNT, asked, reasons, states, told, wished
from lane_workloads import asking, counting, deployed, reminding
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs

from streams import pauses
from streams.breaker import BreakerPolicy, State
from streams.changes import QUEUES_BY_DUE
from streams.errors import OutcomeUnknown, PermanentError, TransientError
from streams.operations import Kind
from streams.pausing import PauseState, Wish
from streams.retry import RetryPolicy
from streams.testing.faults import ScriptedFaults

POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", "applied")
KEYS = "abcdefgh"


def some(world: World, work: Any, numbers: range, keys: str = KEYS) -> list[Post]:
    return [world.event(work, key, i) for i in numbers for key in keys]


async def test_what_comes_for_a_paused_handler_waits_and_others_of_the_topic_go_on(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name, tallied=True)
    await started(world, work)
    lane = await world.open()
    await asked(world, Wish.PAUSE)
    events = some(world, work, range(4))
    await world.post(*events)
    await settled(world, work, lane)
    await pass_time(world, 5.0)
    assert work.hooks.calls == []
    assert await counts(world, "tallies") == dict.fromkeys(KEYS, 4)
    assert await reasons(world) == {"paused": len(KEYS)}
    assert await states(world) == {0: PauseState.PAUSED, 1: PauseState.PAUSED}

    await asked(world, Wish.RESUME)
    await all_counted(world, lane, 2 * len(events))
    await finish(world, work, lane, events)
    for key in KEYS:
        assert await order_of(world, work, key) == list(range(4))
    assert await states(world) == {}
    assert [(what, how) for what, _, how in await told(world)] == [
        *[("pause", "paused")] * 2,
        *[("resume", "running, it was paused")] * 2,
    ]


async def test_a_resume_rewrites_no_row_of_what_waits(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work)
    lane = await world.open()
    await asked(world, Wish.PAUSE)
    await world.post(*some(world, work, range(1)))
    await settled(world, work, lane)
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == len(KEYS))
    await settled(world, work, lane)
    changelog = world.app.layout.changelog("lane")
    queues = [record for record in (await world.records(changelog)) if record.key[:1] == b"q"]
    assert [record.value for record in queues].count(None) == len(KEYS)
    assert len(queues) == 2 * len(KEYS), "each begins and ends"
    await lane.stop()


@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", [Wish.PAUSE, Wish.RESUME, Wish.DRAIN])
async def test_a_lane_killed_while_it_settles_a_wish_is_continued(
    fake: FakeWorld, kind: Wish, point: str, disk: str
) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work)
    events = some(world, work, range(3))
    lane = await world.open()
    await world.post(*events[:4])
    await settled(world, work, lane)
    if kind is Wish.RESUME:
        await asked(world, Wish.PAUSE)
    await world.post(*events[4:12])
    await settled(world, work, lane)
    world.faults.kill_at(point, nth=world.faults.reached[point] + 1)
    await world.post(*wished(world, kind), *events[12:])
    await lane.killed()
    assert world.faults.pending == []
    stores = world.machine if disk == "kept" else world.stores()
    world.faults = ScriptedFaults()
    lane = await world.open(stores=stores)
    await world.settled(work.source, world.app.layout.operations)
    ended = {Wish.PAUSE: PauseState.PAUSED, Wish.DRAIN: PauseState.DRAINED}
    if kind in ended:
        await pass_time(world, 3.0)
        assert set((await states(world)).values()) == {ended[kind]}
        before = len(work.hooks.calls)
        await world.post(*(more := some(world, work, range(3, 4))))
        events += more
        await settled(world, work, lane)
        assert len(work.hooks.calls) == before
        await asked(world, Wish.RESUME)
    await world.until(lambda: not lane.lane.gates[COUNT].queues and not lane.lane.backlog)
    await settled(world, work, lane)
    await lane.stop()
    await check(world, work, events)
    await check_store(world, stores=stores)
    await nothing_waits(world)
    assert await states(world) == {}
    assert [where for what, where, _ in await told(world) if what == kind] == [0, 1], "each once"


async def test_a_pause_holds_in_lanes_of_another_count(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, partitions=4)
    lane = await world.open()
    await asked(world, Wish.PAUSE)
    events = some(world, work, range(2))
    await world.post(*events)
    await settled(world, work, lane)
    await lane.stop()
    two = world.cut_into(work, lanes=2)
    stores = world.stores()
    with capture_logs() as logs:
        lanes = [await world.open(number, app=two, stores=stores) for number in range(2)]
    warned = [each for each in logs if each["event"] == "handler_is_paused"]
    assert [(each["handler"], each["partitions"]) for each in warned] == [(COUNT, {"paused": 2})] * 2
    more = some(world, work, range(2, 3))
    await world.post(*more)
    await world.settled(work.source)
    await pass_time(world, 2.0)
    assert work.hooks.calls == []
    await asked(world, Wish.RESUME)
    await world.until(lambda: sum(each.handled for each in lanes) >= len(events + more))
    await world.until(lambda: not any(each.lane.gates[COUNT].queues or each.lane.backlog for each in lanes))
    await world.settled(work.source)
    for each in lanes:
        await each.stop()
    await check(world, work, events + more)
    await nothing_waits(world)


async def test_a_wish_that_comes_twice_is_settled_once_and_one_for_what_is_so_changes_nothing(
    fake: FakeWorld,
) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work)
    lane = await world.open()
    await asked(world, Wish.PAUSE, operation_id="first")
    await asked(world, Wish.PAUSE, operation_id="first")
    assert lane.lane.counters.duplicates == 2
    await asked(world, Wish.PAUSE, operation_id="second", who="bob")
    await world.until(lambda: not lane.lane.backlog)
    assert {pause.who for pause in lane.lane.gates[COUNT].pauses.values()} == {"ann"}
    assert [how for _, _, how in await told(world)] == ["paused"] * 2 + ["already paused"] * 2
    await asked(world, Wish.RESUME)
    await asked(world, Wish.PAUSE, operation_id="first")
    assert await states(world) == {}, "the first one is an old wish"
    await lane.stop()
    await check_store(world)


async def test_a_wish_that_nobody_can_read_or_about_no_handler_changes_nothing(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work)
    lane = await world.open()
    (post,) = wished(world, Wish.PAUSE, operation_id="cut off", partitions=[0])
    with capture_logs() as logs:
        await world.post(post._replace(value=b'{"kind": "pause"}'))
        await asked(world, Wish.PAUSE, "bench.nobody")
    assert [each["event"] for each in logs if each["event"].endswith("unreadable")] == [
        "operation_unreadable"
    ]
    assert {how for _, _, how in await told(world)} == {"refused: there is no handler bench.nobody"}
    await world.post(*(events := some(world, work, range(1))))
    await all_counted(world, lane, len(events))
    await finish(world, work, lane, events)


async def test_a_pause_of_one_partition_leaves_the_others(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=LATER)
    work.hooks.before = Failing(world, {(key, 0): 1 for key in KEYS}, TransientError("busy"))
    running = {key for key in KEYS if world.app.layout.partition_of(key.encode()) == 1}
    held = sorted(set(KEYS) - running)
    assert running
    before = some(world, work, range(1), held[0])
    await world.post(*before)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1)
    await asked(world, Wish.PAUSE, partitions=[0])
    events = [event for event in some(world, work, range(2)) if event not in before]
    await world.post(*events)
    await world.until(lambda: len(work.hooks.calls) == 1 + 3 * len(running))
    await settled(world, work, lane)
    commits = lane.lane.commits
    await pass_time(world, 3.0)
    assert lane.lane.commits == commits, "what is held does not even set out"
    assert {key for key, _ in work.hooks.calls} == {held[0], *running}
    assert await counts(world) == dict.fromkeys(running, 2)
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 3 * len(KEYS))
    await finish(world, work, lane, before + events)


async def test_retries_and_their_followers_wait_for_the_resume_at_their_own_times(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(2.0, 10.0)))
    work.hooks.before = failing = Failing(world, {("a", 0): 2, ("b", 0): 1}, TransientError("busy"))
    events = some(world, work, range(2), "ab")
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: len(failing.of("a", 0)) == 2, timeout=60)
    await world.until(lambda: len(failing.of("b", 1)) == 1)
    await asked(world, Wish.PAUSE)
    resumed = world.clock.now() + 3.0
    await pass_time(world, 3.0)
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(failing.of("a", 1)) == 1)
    _, second, third = failing.of("a", 0)
    assert third >= second + 10.0, "its own time was later than the resume"
    assert third > resumed
    await finish(world, work, lane, events)
    assert await order_of(world, work, "a") == [0, 1]


async def test_a_retry_that_is_due_while_paused_is_not_tried(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=LATER)
    work.hooks.before = failing = Failing(world, {("a", 0): 1}, TransientError("busy"))
    events = some(world, work, range(3), "a")
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1)
    await asked(world, Wish.PAUSE)
    await pass_time(world, 5.0)
    assert len(failing.tries) == 1
    await settled(world, work, lane)
    assert await reasons(world) == {"retry": 1}
    await asked(world, Wish.RESUME)
    await all_counted(world, lane, 3)
    await world.until(lambda: len(failing.tries) == 4)
    await finish(world, work, lane, events)
    assert await order_of(world, work, "a") == [0, 1, 2]


async def test_a_paused_handler_costs_no_look_at_what_waits_for_it(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work)
    lane = await world.open()
    await asked(world, Wish.PAUSE)
    events = some(world, work, range(1))
    await world.post(*events)
    await settled(world, work, lane)
    store: Any = lane.lane.store
    looked: list[str] = []
    scan = store.scan

    def spied(table: str, **bounds: Any) -> Any:
        looked.append(table)
        return scan(table, **bounds)

    store.scan = spied
    await pass_time(world, 2.0)
    assert looked, "the timers are looked at meanwhile"
    assert QUEUES_BY_DUE not in looked
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == len(KEYS))
    assert QUEUES_BY_DUE in looked
    await finish(world, work, lane, events)


async def test_an_attempt_under_way_ends_and_what_fails_then_waits(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        if i == 0:
            await answered.wait()
            if key == "b" and work.hooks.calls.count(("b", 0)) == 1:
                raise TransientError("busy")

    work = asking(world.name, ask)
    await started(world, work)
    events = some(world, work, range(2), "ab")
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: len(work.hooks.calls) == 2)
    await world.post(*wished(world, Wish.PAUSE))
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert lane.lane.gates[COUNT].under_way == 2
    answered.set()
    await settled(world, work, lane)
    await pass_time(world, 2.0)
    assert sorted(work.hooks.calls) == [("a", 0), ("b", 0)], "no immediate retry, and none that came behind"
    assert lane.lane.gates[COUNT].under_way == 0
    assert await counts(world) == {"a": 1}
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 5)
    await finish(world, work, lane, events)


async def test_what_stands_behind_a_head_that_ends_while_paused_waits_on(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        if len(work.hooks.calls) == 1:
            raise TransientError("busy")
        await answered.wait()

    work = asking(world.name, ask)
    await started(world, work, retry=LATER)
    events = some(world, work, range(2), "a")
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: len(work.hooks.calls) == 2)
    await world.post(*wished(world, Wish.PAUSE))
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    handled = lane.handled
    answered.set()
    await world.until(lambda: lane.handled > handled)
    await settled(world, work, lane)
    assert (lane.handled, len(work.hooks.calls)) == (handled + 1, 2)
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 3)
    await finish(world, work, lane, events)


async def test_a_pause_takes_effect_though_all_places_for_async_handlers_are_taken(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()

    work = asking(world.name, ask)
    await started(world, work, max_in_flight=2)
    events = some(world, work, range(1))
    await world.post(*events, *wished(world, Wish.PAUSE))
    lane = await world.open()
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    answered.set()
    await settled(world, work, lane)
    assert len(work.hooks.calls) <= 2
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == len(KEYS))
    await finish(world, work, lane, events)


async def test_a_head_that_has_set_out_but_not_begun_waits_on(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        if i == 0 and work.hooks.calls.count((key, 0)) == 1:
            raise TransientError("busy")
        if i == 1:
            await answered.wait()

    work = asking(world.name, ask, order_by=lambda event: str(event.i))
    await started(world, work, retry=LATER)
    events = some(world, work, range(2), "a")
    await world.post(events[0])
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await world.post(events[1])
    await world.until(lambda: ("a", 1) in work.hooks.calls)
    await world.until(lambda: bool(lane.lane.gates[COUNT].running), timeout=10)
    await world.post(*wished(world, Wish.PAUSE))
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    answered.set()
    await settled(world, work, lane)
    await pass_time(world, 2.0)
    assert work.hooks.calls == [("a", 0), ("a", 1)]
    assert not lane.lane.gates[COUNT].running
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 3)
    await finish(world, work, lane, events)


async def test_a_breaker_keeps_its_state_while_its_handler_is_paused(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    breaker = BreakerPolicy(minimum=4, open_for=20.0, max_open_for=20.0, probes=2)
    await started(world, work, breaker=breaker)
    down = True

    def outage(event: Any) -> None:
        if down:
            raise ConnectionError("nobody there")

    work.hooks.before = outage
    events = some(world, work, range(2))
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.gates[COUNT].breaker.state is State.OPEN)
    await settled(world, work, lane)
    await asked(world, Wish.PAUSE)
    tried = len(work.hooks.calls)
    await pass_time(world, 60.0)
    assert len(work.hooks.calls) == tried, "no probe either"
    assert lane.lane.gates[COUNT].breaker.state is State.OPEN
    down = False
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(set(work.hooks.calls)) == len(events))
    await world.until(lambda: not lane.lane.gates[COUNT].queues)
    assert lane.lane.gates[COUNT].breaker.state is State.CLOSED
    await finish(world, work, lane, events)
    assert await dead_letters(world, work.source) == []


async def test_a_replay_waits_for_the_resume_and_is_first_then(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=LATER)
    work.hooks.before = broken = Broken(("a", 0))
    events = some(world, work, range(3), "a")
    await world.post(events[0])
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    broken.mend()
    await asked(world, Wish.PAUSE)
    await world.post(*events[1:])
    await settled(world, work, lane)
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, Kind.REPLAY, ident))
    await pass_time(world, 2.0)
    assert len(work.hooks.calls) == 1
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 4)
    await finish(world, work, lane, events)
    assert await order_of(world, work, "a") == [0, 1, 2]


async def test_what_a_discarded_letter_releases_waits_for_the_resume(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=HOLDING)
    work.hooks.before = Broken(("a", 0))
    events = some(world, work, range(2), "a")
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await asked(world, Wish.PAUSE)
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, Kind.DISCARD, ident))
    await pass_time(world, 2.0)
    assert len(work.hooks.calls) == 1
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 2)
    await finish(world, work, lane, events[1:])


async def test_more_than_may_wait_of_a_key_become_dead_letters(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, max_waiting=3)
    lane = await world.open()
    await asked(world, Wish.PAUSE)
    events = some(world, work, range(5), "a")
    await world.post(*events)
    await settled(world, work, lane)
    assert [dict(letter)["ce_id"] for letter in await letters_of(world, work)] == [b"a-3", b"a-4"]
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 3)
    await finish(world, work, lane, events[:3])


async def test_timers_of_a_paused_handler_fire_and_their_messages_wait_for_whoever_takes_them(
    fake: FakeWorld,
) -> None:
    world = fake
    work = reminding(world.name)
    await world.start(work)
    lane = await world.open()
    due = world.clock.now() + 1.0
    headers = with_header(Post("", 0, b"", b"", []), "ce_id", b"1").headers
    await world.post(world.raw(work.asked.TOPIC, "a", b'{"k":"a","due":%f}' % due, headers))
    await world.settled(work.asked.TOPIC)
    await asked(world, Wish.PAUSE, "timers.remind")
    await asked(world, Wish.PAUSE, "timers.ring")
    await pass_time(world, 3.0)
    assert lane.lane.counters.timers == 1
    assert await counts(world, "rings") == {}
    await asked(world, Wish.RESUME, "timers.ring")
    await world.until(lambda: not lane.lane.gates["timers.ring"].queues and not lane.lane.backlog)
    assert await counts(world, "rings") == {"a": 1}
    await lane.stop()


# -- drain ------------------------------------------------------------------------------------------------


async def test_a_drain_works_off_what_waited_and_then_holds(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(2.0, 2.0)))
    work.hooks.before = failing = Failing(world, {("a", 0): 2}, TransientError("busy"))
    home = world.app.layout.partition_of(b"a")
    near = next(key for key in KEYS[1:] if world.app.layout.partition_of(key.encode()) == home)
    far = next(key for key in KEYS if world.app.layout.partition_of(key.encode()) != home)
    keys = f"a{near}{far}"
    events = some(world, work, range(1), keys)
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(world, Wish.DRAIN)
    more = some(world, work, range(1, 3), keys)
    await world.post(*more)
    await settled(world, work, lane)
    await world.until(lambda: lane.lane.gates[COUNT].pauses[b"\0%c" % (1 - home)].holds)
    assert (await states(world))[home] is PauseState.DRAINING
    await world.until(lambda: bool(failing.of("a", 2)))
    assert failing.of(near, 1) == failing.of(far, 1) == [], "they came after"
    assert len(failing.of("a", 0)) == 3, "worked off at its times, and what stands behind it"
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    await settled(world, work, lane)
    assert set((await states(world)).values()) == {PauseState.DRAINED}
    assert await reasons(world) == {"paused": 2}
    await world.post(world.event(work, "a", 3))
    await pass_time(world, 3.0)
    assert failing.of("a", 3) == [], "then it is as paused"
    await asked(world, Wish.RESUME)
    await world.until(lambda: bool(failing.of("a", 3) and failing.of(near, 2) and failing.of(far, 2)))
    await finish(world, work, lane, [*events, *more, world.event(work, "a", 3)])
    assert [what for what, _, _ in await told(world)] == ["drain"] * 2 + ["drained"] * 2 + ["resume"] * 2
    for key in keys:
        assert await order_of(world, work, key) == sorted(await order_of(world, work, key))


async def test_a_drain_is_not_done_before_what_was_under_way_and_its_retries(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()
        if work.hooks.calls.count((key, i)) == 1:
            raise TransientError("busy")

    work = asking(world.name, ask)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(1.0,)))
    event = world.event(work, "a", 0)
    await world.post(event)
    lane = await world.open()
    await world.until(lambda: bool(work.hooks.calls))
    await world.post(*wished(world, Wish.DRAIN))
    home = world.app.layout.partition_of(b"a")
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 1)
    await pass_time(world, 2.0)
    assert lane.lane.gates[COUNT].pauses[b"\0%c" % home].state is PauseState.DRAINING
    answered.set()
    await world.until(lambda: lane.lane.counters.retries == 1)
    assert len(lane.lane.gates[COUNT].held) == 1
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert work.hooks.calls == [("a", 0)] * 2
    await world.settled(world.app.layout.operations)
    await asked(world, Wish.RESUME)
    await finish(world, work, lane, [event])


async def test_a_drain_goes_on_after_its_lane_has_reopened(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(5.0,)))
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    events = some(world, work, range(2), "a")
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(world, Wish.DRAIN)
    world.faults.raise_at("sent", world.faults.reached["sent"] + 1, OutcomeUnknown("no answer"))
    await world.post(*(more := some(world, work, range(2, 3), "ab")))
    await world.until(lambda: lane.lane.reopened == 1)
    await world.until(lambda: lane.lane.state == "open" and len(lane.lane.gates[COUNT].held) == 2)
    assert sorted(set(work.hooks.calls)) == [("a", i) for i in range(3)], "b came after"
    await settled(world, work, lane)
    await asked(world, Wish.RESUME)
    await world.until(lambda: ("b", 2) in work.hooks.calls)
    await finish(world, work, lane, events + more)


async def test_a_letter_that_holds_others_does_not_keep_a_drain_from_its_end(fake: FakeWorld) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=HOLDING)
    work.hooks.before = Broken(("a", 0), error=PermanentError("never"))
    await world.post(*some(world, work, range(2), "a"))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await asked(world, Wish.DRAIN)
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert await reasons(world) == {"dead": 1}
    await lane.stop()
    await check_store(world)


async def test_a_drain_of_one_partition_leaves_what_waits_because_of_it_while_another_runs(
    fake: FakeWorld,
) -> None:
    world = fake
    work = counting(world.name)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(5.0,)))
    near, *_ = [key for key in KEYS[1:] if world.app.layout.partition_of(key.encode()) == 0]
    first, *_ = [key for key in KEYS if world.app.layout.partition_of(key.encode()) == 0]
    assert first != near
    work.hooks.before = Failing(world, {(first, 0): 1}, TransientError("busy"))
    events = some(world, work, range(1), first)
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(world, Wish.DRAIN, partitions=[0])
    await world.post(*(more := some(world, work, range(1), near)))
    await pass_time(world, 2.0)
    assert (await states(world), work.hooks.calls) == ({0: PauseState.DRAINING}, [(first, 0)])
    await asked(world, Wish.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 3)
    await finish(world, work, lane, events + more)


async def test_a_drain_is_not_done_while_what_an_earlier_pause_has_held_is_under_way(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()

    work = asking(world.name, ask)
    await started(world, work)
    lane = await world.open()
    await asked(world, Wish.PAUSE)
    event = world.event(work, "a", 0)
    await world.post(event)
    await settled(world, work, lane)
    await asked(world, Wish.RESUME)
    await world.until(lambda: bool(work.hooks.calls))
    await world.post(*wished(world, Wish.DRAIN))
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 1)
    await pass_time(world, 2.0)
    assert len(lane.lane.gates[COUNT].held) == 1
    answered.set()
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert work.hooks.calls == [("a", 0)]
    await finish(world, work, lane, [event])


async def test_a_drain_of_more_than_is_looked_at_is_not_done_before_all_of_it(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "MOST_LOOKED_AT", 2)
    world = fake
    work = counting(world.name)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(5.0,)))
    work.hooks.before = Failing(world, {(key, 0): 1 for key in KEYS}, TransientError("busy"))
    events = some(world, work, range(1))
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == len(KEYS) and not lane.lane.backlog)
    await asked(world, Wish.DRAIN)
    await pass_time(world, 2.0)
    assert not lane.lane.gates[COUNT].held
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert len(work.hooks.calls) == 2 * len(KEYS)
    await finish(world, work, lane, events)


async def test_what_the_handler_no_longer_takes_does_not_keep_a_drain_from_its_end(fake: FakeWorld) -> None:
    world = fake
    work, without = deployed(world.name, 1, 2), deployed(world.name, 2)
    await started(world, work, retry=LATER)
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    await world.post(world.event(work, "a", 0))
    lane = await world.open()
    await settled(world, work, lane)
    await lane.stop()
    lane = await world.open(app=world.cut_into(without, lanes=1))
    await world.until(lambda: bool(lane.lane.gates[COUNT].stranded))
    await asked(world, Wish.DRAIN)
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert len(lane.lane.gates[COUNT].queues) == 1
    await lane.stop()
