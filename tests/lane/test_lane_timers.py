"""Timers ring when due, once, unless they are moved or cancelled before."""

import asyncio
import json
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import pytest
from lane_checker import check_positions, check_store, counts
from lane_scenes import LANDING_AT_SENT, opened, post, stopped
from lane_workloads import Keyed, Reminding, reminding
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs

from streams.model.choreography import Choreography, choreography, on
from streams.model.handlers import Service
from streams.model.outcome import Outcome, Timer, nothing, outcome


class Alarms(NamedTuple):
    wiring: Choreography
    asked: Any
    stopped: Any
    resources: dict[str, Any] = {}  # noqa: RUF012 - none


def asking_for(world: World, work: Reminding, i: int, due: float | None, key: str = "a", **more: Any) -> Post:
    return post(world, work.asked(k=key, due=due, **more), i)


async def reminder(world: World, ask: Any = None, **options: Any) -> Reminding:
    work = reminding(world.name, ask)
    await world.start(work, **options)
    return work


async def rung(world: World, work: Reminding) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in await world.records(work.rang.TOPIC)]


async def finish(world: World, work: Reminding, lane: Any) -> None:
    await stopped(world, lane, work.asked.TOPIC, work.rang.TOPIC)
    await check_positions(world, [work.asked.TOPIC, work.rang.TOPIC])
    await check_store(world)


async def test_a_timer_rings_where_the_key_of_its_message_belongs(fake: FakeWorld) -> None:
    work = await reminder(fake, partitions=4)
    for i, to in enumerate("bcdefgh"):
        await fake.post(asking_for(fake, work, i, fake.clock.now() + 1.0, name=to, to=to))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: lane.handled == 14)
    assert "timer_without_line" not in {each["event"] for each in logs}
    await finish(fake, work, lane)
    assert await counts(fake, "rings") == dict.fromkeys("bcdefgh", 1)  # and each row lies in its partition


async def test_timers_ring_once_when_due_unless_moved_or_cancelled(world: World) -> None:
    work = await reminder(world)
    start = world.clock.now() + 0.6
    await world.post(
        *(asking_for(world, work, 1, start, key) for key in "abc"),
        asking_for(world, work, 2, start + 0.6, "a"),
        asking_for(world, work, 2, None, "b"),
        asking_for(world, work, 1, start, "d", at_once=True),
    )
    lane = await world.open()
    await world.until(lambda: lane.handled == 10)
    assert world.clock.now() >= start + 0.599  # timers are kept in milliseconds
    await finish(world, work, lane)
    assert await counts(world, "rings") == {"a": 1, "c": 1, "d": 2}
    sent = [dict(record.headers) for record in await world.records(work.rang.TOPIC)]
    assert sorted(headers["ce_causationid"] or b"" for headers in sent) == [b"a-2", b"c-1", b"d-1", b"d-1"]
    assert all((headers.get("timer-due") or b"") <= (headers["ce_time"] or b"") for headers in sent)
    assert len({headers["ce_id"] for headers in sent}) == 4


@pytest.mark.promise("timers")
@pytest.mark.landing
async def test_a_timer_survives_the_loss_of_lane_and_disk(world: World) -> None:
    work = await reminder(world)
    due = world.clock.now() + 1.2
    first = await opened(world, *(asking_for(world, work, 1, due, key) for key in "abc"))
    await stopped(world, first, work.asked.TOPIC)
    elsewhere = world.stores()
    lane = await world.open(stores=elsewhere)
    await world.until(lambda: first.handled + lane.handled >= 6)
    await stopped(world, lane, work.rang.TOPIC)
    await check_store(world, stores=elsewhere)
    assert await counts(world, "rings") == {"a": 1, "b": 1, "c": 1}


@pytest.mark.promise("timers")
@pytest.mark.parametrize("point", LANDING_AT_SENT)
async def test_a_lane_killed_while_it_fires_rings_once(world: World, point: str) -> None:
    work = await reminder(world)
    await world.post(asking_for(world, work, 1, world.clock.now() + 0.3))
    world.faults.kill_at(point, nth=2)  # the first commit sets the timer, the second fires it
    await world.lane().killed()
    assert world.faults.pending == []
    lane = await world.open()
    await world.until(lambda: lane.handled >= 1)
    await finish(world, work, lane)
    assert await counts(world, "rings") == {"a": 1}
    assert len(await rung(world, work)) == 1


async def test_many_timers_due_at_once_all_ring(world: World) -> None:
    work = await reminder(world, max_backlog=20, max_batch=7)
    keys = [f"k{i}" for i in range(90)]
    lane = await opened(world, *(asking_for(world, work, 1, world.clock.now() - 5, key) for key in keys))
    await world.until(lambda: lane.handled == 2 * len(keys))
    await finish(world, work, lane)
    assert await counts(world, "rings") == dict.fromkeys(keys, 1)


async def test_a_timer_about_to_be_moved_is_not_lost(world: World) -> None:
    go_on = asyncio.Event()
    asked: list[str] = []

    async def ask(key: str) -> None:
        asked.append(key)
        if len(asked) > 1:
            await go_on.wait()

    work = await reminder(world, ask)
    lane = await world.open()
    due = world.clock.now() + 1.5  # it must not ring before the second one is being handled
    await world.post(asking_for(world, work, 1, due))
    await world.settled(work.asked.TOPIC)
    await world.post(asking_for(world, work, 2, due + 0.8))
    await world.until(lambda: len(asked) == 2 and world.clock.now() > due + 0.3)
    go_on.set()
    await world.until(lambda: lane.handled == 3)
    await finish(world, work, lane)
    assert world.clock.now() >= due + 0.8
    assert await counts(world, "rings") == {"a": 1}


async def test_a_key_with_a_zero_byte_has_its_own_timers(fake: FakeWorld) -> None:
    work = await reminder(fake, partitions=1)
    due = fake.clock.now() + 0.3
    one, other = asking_for(fake, work, 1, due, "a"), asking_for(fake, work, 1, due, "a\0b")
    for asked, name in ((one, "b\0alarm"), (other, "alarm")):
        body = json.loads(asked.value or b"") | {"name": name}
        await fake.post(asked._replace(value=json.dumps(body).encode()))
    lane = await fake.open()
    await fake.until(lambda: fake.clock.now() > due + 1)
    await finish(fake, work, lane)
    assert await counts(fake, "rings") == {"a": 1, "a\0b": 1}


async def test_a_timer_cancelled_and_set_at_once_is_set(fake: FakeWorld) -> None:
    work = await reminder(fake, partitions=1)
    due = fake.clock.now() + 0.3
    lane = await opened(fake, asking_for(fake, work, 1, due + 900), asking_for(fake, work, 2, due, anew=True))
    await fake.until(lambda: lane.handled == 3)
    await finish(fake, work, lane)
    assert fake.clock.now() < due + 900
    assert await counts(fake, "rings") == {"a": 1}


async def test_a_timer_whose_message_has_no_line_warns_once(fake: FakeWorld) -> None:
    work = reminding(fake.name)
    asks = work.wiring.routes[work.asked.TOPIC]
    await fake.start(replace(work, wiring=choreography(asks)))
    with capture_logs() as logs:
        due = fake.clock.now() + 0.1
        lane = await opened(fake, *(asking_for(fake, work, i, due, key) for i, key in enumerate("aab")))
        await fake.until(lambda: len(fake.cluster.visible(work.rang.TOPIC)) == 2)  # moved once, then rung
    (said,) = [each for each in logs if each["event"] == "timer_without_line"]
    assert (said["topic"], said["handler"]) == (work.rang.TOPIC, "timers.remind")
    assert said["action"] == "add on(Rang, ...), unless another application takes it"
    await stopped(fake, lane, work.asked.TOPIC)


def alarms(world: World) -> Alarms:
    """A handler that sets timers and cancels them, and another one that cancels those of the first."""

    class Rang(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{world.name}.alarm.rang.v1"

    class Asked(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{world.name}.alarm.asked.v1"
        due: float = 0.0
        cancel: str = ""

    class Stopped(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{world.name}.alarm.stopped.v1"
        name: str

    service = Service("alarms")

    @service.handler(sends=[Rang])
    def ask(event: Asked) -> Outcome:
        timers = [Timer("alarm", event.due, Rang(k=event.k))] if event.due else []
        return outcome(timers=timers, cancel=[event.cancel] if event.cancel else [])

    @service.handler()
    def stop(event: Stopped) -> Outcome:
        return outcome(cancel=[event.name])

    @service.handler()
    def ring(event: Rang) -> Outcome:
        return nothing("")

    return Alarms(choreography(on(Asked, ask), on(Stopped, stop), on(Rang, ring)), Asked, Stopped)


async def unknown_timers(world: FakeWorld, work: Alarms, *events: Any) -> list[Any]:
    """What the log says of timers that are cancelled and were never set."""
    await world.start(work)
    with capture_logs() as logs:
        lane = await world.open()
        for number, event in enumerate(events):
            await world.post(post(world, event, number))
            await world.until(lambda n=number: lane.lane.counters.handled >= n + 1)
        await stopped(world, lane, *work.wiring.routes)
    return [each for each in logs if each["event"] == "timer_unknown"]


@pytest.mark.promise("impossible-timers")
async def test_a_timer_of_another_handler_cannot_be_cancelled_in_silence(fake: FakeWorld) -> None:
    work = alarms(fake)
    asked, gone = work.asked(k="a", due=fake.clock.now() + 900), work.stopped(k="a", name="alarm")
    (told,) = await unknown_timers(fake, work, asked, gone, gone, work.stopped(k="a", name="other"))
    assert (told["handler"], told["timer"], told["key"]) == ("alarms.stop", "alarm", "a")
    assert "alarms.ask has set one, and only it can cancel that" in told["action"]


@pytest.mark.promise("impossible-timers")
async def test_a_name_that_was_never_set_is_told_once(fake: FakeWorld) -> None:
    work = alarms(fake)
    asked = work.asked(k="a", due=fake.clock.now() + 900)
    mistyped = work.asked(k="a", cancel="alram")
    (told,) = await unknown_timers(fake, work, asked, mistyped, mistyped)
    assert (told["handler"], told["timer"]) == ("alarms.ask", "alram")
    assert "no handler has set one" in told["action"]


async def test_to_cancel_a_timer_of_ones_own_is_no_news(fake: FakeWorld) -> None:
    work = alarms(fake)
    asked, gone = work.asked(k="a", due=fake.clock.now() + 900), work.asked(k="a", cancel="alarm")
    both = work.asked(k="b", due=fake.clock.now() + 900, cancel="alarm")
    assert await unknown_timers(fake, work, both, asked, gone, gone) == []


async def test_a_timer_that_was_set_before_a_restart_is_known(fake: FakeWorld) -> None:
    work = alarms(fake)
    assert await unknown_timers(fake, work, work.asked(k="a", due=fake.clock.now() + 900)) == []
    fake.app.timer_names.clear()
    with capture_logs() as logs:
        lane = await opened(fake, post(fake, work.asked(k="a", cancel="alarm"), 7))
        await fake.until(lambda: lane.lane.counters.handled == 1)
        await stopped(fake, lane, *work.wiring.routes)
    assert [each for each in logs if each["event"] == "timer_unknown"] == []
