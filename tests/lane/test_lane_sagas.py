"""A saga on the lane: outages, and commands that come too late, change no outcome."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from lane_pausing import asked
from lane_sagas import TRIPS, LeaveSeat, ReturnMoney, TakeMoney, TakeSeat, Trip, TripReply, TripWanted, trips
from lane_scenes import opened, post, rows_of, stopped, until_so
from lane_worlds import FakeWorld, World

import streams.engine.way.failure
from streams.model.layout import dead_letter_topic
from streams.model.operations import HandlerCommand
from streams.model.policy.retry import RetryPolicy
from streams.ports import Record
from streams.saga.definition import Saga, saga
from streams.saga.state import SagaRow

pytestmark = pytest.mark.promise("loopback", "with loopback on")


async def rows(world: World) -> dict[str, SagaRow]:
    return await rows_of(world, TRIPS)


async def replies(world: World, what: str = "outcome") -> list[str]:
    return [json.loads(record.value or b"")[what] for record in await world.records(TripReply.TOPIC)]


async def ended(world: World, lane: Any, ends: dict[str, str]) -> None:
    """Wait until every topic has been handled to its end and every saga has ended."""

    async def over() -> bool:
        return {key: row.status for key, row in (await rows(world)).items()} == ends

    await until_so(world, over)
    await stopped(world, lane, *(topic for topic in world.app.routes))


async def waiting(world: World, version: Saga = Trip) -> TripReply:
    """A saga whose command nobody has answered yet, and whose lane is gone; the reply that it waits for."""
    await world.start(trips(world.clock, participants=False, versions=(version,)))
    lane = await opened(world, post(world, TripWanted(k="a", to="home")))
    await stopped(world, lane, TripWanted.TOPIC)
    (sent,) = await world.records(TakeSeat.TOPIC)
    return success_of(sent)


def success_of(sent: Record) -> TripReply:
    command = msgspec.json.decode(sent.value or b"", type=TakeSeat)
    told = {"saga_id": command.saga_id, "step": command.step, "command_id": command.command_id}
    return TripReply(**told, outcome="success")


def quick_trip(timeout: float) -> Saga:
    """The same, of which a step has so many seconds."""
    return (
        saga("trip", started_by=TripWanted)
        .step("seat", TakeSeat, compensate=LeaveSeat, timeout=timeout)
        .step("money", TakeMoney, compensate=ReturnMoney, timeout=30)
    )


@pytest.mark.promise("saga-deadline-order")
@pytest.mark.landing
async def test_an_outage_with_replies_unread_fires_no_false_deadline(world: World) -> None:
    # Long enough for the first lane to end before it is over, on a busy machine too.
    reply = await waiting(world, quick_trip(4.0))
    await world.post(post(world, reply))
    await world.passes(60.0, real=4.0)  # the deadline is over
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.timers == 1)
    await world.until(lambda: lane.handled >= 2)
    await stopped(world, lane, TripReply.TOPIC)
    assert await replies(world) == ["success", "timed_out"]
    row = (await rows(world))["a"]
    stands = (row.status, row.step("seat").status, row.step("money").status)
    assert stands == ("started", "completed", "in_progress")


@pytest.mark.promise("saga-expired-command")
async def test_a_command_too_late_to_succeed_is_answered_at_once(world: World) -> None:
    work, wait = trips(world.clock), 10.0 if world.is_fake else 1.0
    work.till.closed = True
    await world.start(work, retry=RetryPolicy(immediate=2, delays=(wait, 60.0)))
    await world.post(post(world, TripWanted(k="a", to="home")))
    began = world.clock.now()
    lane = await world.open()
    await ended(world, lane, {"a": "compensated"})
    assert work.till.asked == 4  # at once, twice again, and after a wait; the next would be 40 s too late
    row = (await rows(world))["a"]
    assert row.step("money").error == "error: TransientError: closed"
    assert wait <= row.log[-1].time - began < 30
    assert await world.records(dead_letter_topic(TakeMoney.TOPIC)) == []
    assert not lane.lane.gates["money.take_money"].queues  # nothing waits behind it for ever


@pytest.mark.promise("saga-expired-command")
async def test_a_command_too_late_is_answered_and_no_dead_letter(fake: FakeWorld) -> None:
    """It was held up here, by a pause of its participant; what came after it asks too late."""
    work = trips(fake.clock)
    await fake.start(work)
    lane = await fake.open()
    await asked(fake, HandlerCommand.PAUSE, "money.take_money")
    await fake.post(post(fake, TripWanted(k="a", to="home")))
    await fake.until(lambda: lane.lane.gates["money.take_money"].queues and not lane.lane.backlog)
    await lane.stop()
    fake.clock.set(fake.clock.now() + 60)
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.timers == 1 and not lane.lane.backlog)
    await asked(fake, HandlerCommand.RESUME, "money.take_money")
    await fake.until(lambda: not lane.lane.gates["money.take_money"].queues)
    await ended(fake, lane, {"a": "compensated"})
    assert work.till.asked == 0
    assert sorted(await replies(fake)) == ["expired", "expired", "success", "success", "success", "timed_out"]
    assert await fake.records(dead_letter_topic(TakeMoney.TOPIC)) == []


@pytest.mark.promise("saga-size")
async def test_a_saga_that_could_outgrow_its_row_does_not_begin(fake: FakeWorld) -> None:
    """It would be stuck with what it has done, for no deadline could be written down either."""
    work = trips(fake.clock)
    await fake.start(work, max_message_bytes=1_000_000, max_backlog_bytes=32 << 20)
    largest = TripWanted(k="a", to="x" * 748_600)  # its first row just fits, with the JSON of these tests
    lane = await opened(fake, post(fake, largest), post(fake, TripWanted(k="b", to="home")))
    await ended(fake, lane, {"b": "completed"})
    (letter,) = await fake.records(dead_letter_topic(TripWanted.TOPIC))
    assert letter.key == b"a"
    assert work.till.taken == {"trip:b:money"}


@pytest.mark.promise("saga-versions")
async def test_sagas_of_an_unknown_version_hold_up_no_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling deploy: their lane goes from a worker that has the version to one that has not."""
    if not world.is_fake:
        monkeypatch.setattr(streams.engine.way.failure, "NOT_YET_PAUSE", 0.3)
    new = trips(world.clock, participants=False, versions=(Trip, replace(Trip, version=2)))
    await world.start(new)
    keys = [str(i) for i in range(30)]
    lane = await opened(world, *(post(world, TripWanted(k=key, to="home")) for key in keys))
    await stopped(world, lane, TripWanted.TOPIC)
    await world.post(*[post(world, success_of(record)) for record in await world.records(TakeSeat.TOPIC)])
    lane = await world.open(app=world.cut_into(trips(world.clock, participants=False), lanes=1))
    await world.settled(TripReply.TOPIC)
    began = world.clock.now()
    await world.post(post(world, TripWanted(k="old", to="home")))
    await world.settled(TripWanted.TOPIC)
    assert not world.is_fake or world.clock.now() - began < 5
    assert len(await world.records(TakeSeat.TOPIC)) == 31
    await world.passes(100.0, real=1.0)
    await lane.stop()
    found = await rows(world)
    assert {found[key].step("seat").status for key in keys} == {"in_progress"}
    lane = await world.open()
    await world.passes(30.0, real=0.3)
    await world.until(lambda: not lane.lane.gates["trips.trip_saga"].queues and not lane.lane.backlog)
    await lane.stop()
    found = await rows(world)
    assert {found[key].step("seat").status for key in keys} == {"completed"}
    assert await world.records(dead_letter_topic(TripReply.TOPIC)) == []


@pytest.mark.promise("saga-expired-command")
async def test_a_command_without_room_to_wait_is_answered(fake: FakeWorld) -> None:
    work = trips(fake.clock)
    await fake.start(work, max_waiting=1)
    lane = await fake.open()
    await asked(fake, HandlerCommand.PAUSE, "money.return_money")
    await fake.post(post(fake, TripWanted(k="a", to="nowhere")))
    await fake.until(lambda: lane.lane.gates["money.return_money"].queues and not lane.lane.backlog)
    fake.clock.set(fake.clock.now() + 30)  # the next try, after its deadline, would stand behind the first
    await fake.until(lambda: lane.lane.counters.timers == 2 and not lane.lane.backlog)
    await fake.settled(TripReply.TOPIC)
    await fake.settled(ReturnMoney.TOPIC)
    await asked(fake, HandlerCommand.RESUME, "money.return_money")
    fake.clock.set(fake.clock.now() + 300)
    await ended(fake, lane, {"a": "compensated"})
    assert any(reason.startswith("QueueFull: ") for reason in await replies(fake, "reason"))
    assert work.till.given_back == {"trip:a:money"}
    assert await fake.records(dead_letter_topic(ReturnMoney.TOPIC)) == []
