"""Sagas in flight while their definition changes: they wait, visibly, and go on by the steps they had."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import httpx
import msgspec
import pytest
from lane_commands import Pages, command_line
from lane_sagas import LeaveSeat, PrintTicket, ReturnMoney, TakeMoney, TakeSeat, TripReply, TripWanted, trips
from lane_scenes import opened, post, stopped
from lane_worlds import FakeWorld
from test_lane_sagas import rows

from streams.control.overview.health import not_yet
from streams.model.layout import dead_letter_topic
from streams.ports import Record
from streams.saga.definition import Saga, saga
from streams.saga.outline import Outline

#: A timeout over all that a test does, in seconds.
LONG = 600.0


class Place(msgspec.Struct, frozen=True):
    number: int


class PlaceInCoach(msgspec.Struct, frozen=True):
    number: int
    coach: str


def by(*steps: str, unchanging: str = "", timeout: float = LONG, reply: Any = None) -> Saga:
    """A trip by these steps, of which each but that of a place takes money, and then its ticket."""
    made = saga("trip", started_by=TripWanted)
    for name in steps:
        taken, given = (TakeSeat, LeaveSeat) if name in ("seat", "place") else (TakeMoney, ReturnMoney)
        undone = {"changes_nothing": True} if name == unchanging else {"compensate": given}
        made = made.step(name, taken, timeout=timeout, reply=reply if name == "seat" else None, **undone)
    return made.pivot("ticket", PrintTicket, timeout=timeout)


def old(**changed: Any) -> Saga:
    return by("seat", "extra", "money", **changed)


def deleted() -> Saga:
    return by("seat", "money")


CHANGED: dict[str, Callable[[], Saga]] = {
    "deleted": deleted,
    "renamed": lambda: by("place", "extra", "money"),
    "inserted": lambda: by("first", "seat", "extra", "money"),
    "reordered": lambda: by("extra", "seat", "money"),
    "not undone": lambda: old(unchanging="extra"),
    "reply class": lambda: old(reply=PlaceInCoach),
}


def success_of(sent: Record) -> TripReply:
    command = msgspec.json.decode(sent.value or b"")
    data = msgspec.json.encode(Place(7)) if command["step"] == "seat" else b""
    names = {name: command[name] for name in ("saga_id", "step", "command_id")}
    return TripReply(**names, outcome="success", data=data)


async def statuses(world: FakeWorld) -> set[str]:
    return {row.status for row in (await rows(world)).values()}


async def in_flight(world: FakeWorld, number: int, *versions: Saga) -> None:
    await world.start(trips(world.clock, participants=False, versions=versions))
    keys = [str(i) for i in range(number)]
    lane = await opened(world, *(post(world, TripWanted(k=key, to="home")) for key in keys))
    await world.settled(TripWanted.TOPIC)
    await answer(world, TakeSeat, keys[: number // 2])
    await stopped(world, lane, TripReply.TOPIC)


async def answer(world: FakeWorld, kind: type[Any], keys: Sequence[str] | None = None) -> None:
    """Each command of a class that was sent, to one of these keys, was done."""
    sent = [e for e in await world.records(kind.TOPIC) if keys is None or (e.key or b"").decode() in keys]
    await world.post(*[post(world, success_of(each)) for each in sent])


async def under(world: FakeWorld, *versions: Saga) -> Any:
    return await world.open(
        app=world.cut_into(trips(world.clock, participants=False, versions=versions), lanes=1)
    )


async def after(world: FakeWorld, lane: Any, *versions: Saga) -> Any:
    """The lane, once it was stopped and other code has it."""
    await lane.stop()
    return await under(world, *versions)


async def through(world: FakeWorld, lane: Any) -> None:
    """All commands are answered until all trips have ended, and nothing waits."""
    for kind in (TakeSeat, TakeMoney, TakeMoney, PrintTicket):
        await answer(world, kind)
        await world.settled(TripReply.TOPIC)
        await world.passes(31.0, real=0)
        await world.settled(TripReply.TOPIC)
    await world.until(lambda: not lane.lane.gates["trips.trip_saga"].queues and not lane.lane.backlog)


@pytest.mark.promise("saga-versions")
@pytest.mark.parametrize(
    ("changed", "digests"), [*product(CHANGED, [True]), *product([*CHANGED][:5], [False])]
)
async def test_sagas_of_other_steps_wait_for_the_old_code(
    fake: FakeWorld, changed: str, *, digests: bool
) -> None:
    """The old code is deployed, then other steps under the same version, then the old code again. Rows from
    before digests are compared by their steps.
    """
    with pytest.MonkeyPatch.context() as before:
        if not digests:
            before.setattr(Outline, "digest", lambda _: "")
        await in_flight(fake, number := 40 if digests else 4, old(reply=Place))
    assert {row.definition != "" for row in (await rows(fake)).values()} == {digests}
    lane = await under(fake, CHANGED[changed]())
    await answer(fake, TakeSeat)
    await answer(fake, TakeMoney)
    await fake.settled(TripReply.TOPIC)
    await fake.passes(1000.0, real=0)
    await fake.until(
        lambda: len(lane.lane.gates["trips.trip_saga"].queues) == number and not lane.lane.backlog
    )
    await lane.stop()
    assert await statuses(fake) == {"started"}
    lane = await under(fake, old(reply=Place))
    await through(fake, lane)
    await lane.stop()
    assert await statuses(fake) == {"completed"}
    assert await fake.records(dead_letter_topic(TripReply.TOPIC)) == []


async def test_health_and_pages_say_that_sagas_wait(fake: FakeWorld) -> None:
    await in_flight(fake, 4, old())
    lane = await under(fake, deleted())
    await answer(fake, TakeMoney)
    await fake.settled(TripReply.TOPIC)
    pages = Pages(fake, lane.lane)
    pages.application = fake.cut_into(trips(fake.clock, participants=False, versions=(deleted(),)), lanes=1)
    async with command_line(fake, pages, "saga") as operator:
        listed = await operator.lines("list")
        (shown,) = await operator.lines("show", listed[0]["id"])
        ready = asyncio.create_task(asyncio.to_thread(httpx.get, f"{operator.url}/health/ready"))
        await fake.until(ready.done)
    assert all("other steps of version 1: step extra is gone" in each["blocked"] for each in listed)
    assert shown["saga"]["blocked"] == listed[0]["blocked"]
    health = ready.result().json()
    assert health["status"] == "degraded"
    expected = "2 keys of trips.trip_saga wait for another version of the application: trip:"
    assert [each for each in health["warnings"] if each.startswith(expected)]
    lane = await after(fake, lane, old())
    await through(fake, lane)
    assert not_yet(lane.lane.gates.values()) == []


@pytest.mark.promise("saga-versions")
async def test_two_hundred_sagas_end_by_the_versions_they_began_with(fake: FakeWorld) -> None:
    """As docs/add-a-service.md shows it: the old version stays beside the new one until they have."""
    await in_flight(fake, 200, old())
    lane = await under(fake, replace(deleted(), version=2), old())
    await fake.post(*(post(fake, TripWanted(k=f"new-{i}", to="home")) for i in range(20)))
    await fake.settled(TripWanted.TOPIC)
    await through(fake, lane)
    await lane.stop()
    found = await rows(fake)
    assert {row.status for row in found.values()} == {"completed"}
    steps = {key: [step.name for step in row.steps] for key, row in found.items()}
    assert sum(names == ["seat", "money", "ticket"] for names in steps.values()) == 20
    assert sum(names == ["seat", "extra", "money", "ticket"] for names in steps.values()) == 200
    assert {len([s for s in row.steps if s.status == "completed"]) for row in found.values()} == {3, 4}


async def test_a_mistake_is_mended_with_both_kinds_in_flight(fake: FakeWorld) -> None:
    """Other steps were deployed under the old version, and sagas began with them before anybody saw it."""
    await in_flight(fake, 10, old())
    lane = await under(fake, deleted())
    await fake.post(*(post(fake, TripWanted(k=f"new-{i}", to="home")) for i in range(10)))
    await fake.settled(TripWanted.TOPIC)
    lane = await after(fake, lane, replace(deleted(), version=2), deleted(), old())
    await through(fake, lane)
    await lane.stop()
    assert await statuses(fake) == {"completed"}


async def test_another_timeout_or_a_late_reply_makes_no_saga_wait(fake: FakeWorld) -> None:
    await in_flight(fake, 4, old())
    lane = await under(fake, old(timeout=60))
    await through(fake, lane)
    assert await statuses(fake) == {"completed"}
    lane = await after(fake, lane, deleted())
    await answer(fake, TakeMoney)
    await stopped(fake, lane, TripReply.TOPIC)
    assert not lane.lane.gates["trips.trip_saga"].queues
    assert {row.log[-1].detail[:12] for row in (await rows(fake)).values()} == {"not awaited:"}
