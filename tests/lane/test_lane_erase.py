"""All that lanes have of a key is erased in its turn; other keys keep theirs."""

from __future__ import annotations

import asyncio

import pytest
from lane_checker import check_store, counts, latest
from lane_desk import Broken, letters, operations_log
from lane_failing import HOLDING, LATER, nothing_waits, started
from lane_parcels import THRESHOLD
from lane_scenes import Outage, opened, post, stopped
from lane_workloads import asking
from lane_worlds import FakeWorld, Post, World
from test_lane_desk_claims import begun
from test_lane_reshard import Both
from test_lane_rows import naming, rows

from streams.engine.waiting.operations import erasing
from streams.model.envelope import new_headers
from streams.model.operations import KEY_OPERATION, KeyCommand, KeyOperation, encode_operation


def about_key(world: World, kind: KeyCommand, key: str, turn: int = 0) -> list[Post]:
    """An operator's messages, one to each partition."""
    operation = KeyOperation(kind=kind, key=key.encode(), who="ann", why="she asked", at_ms=1)
    headers = new_headers(KEY_OPERATION, "key", source="desk", time=1e9, message_id=f"{kind}-{key}-{turn}")
    topic, data = world.app.layout.operations, encode_operation(operation)
    return [Post(topic, number, key.encode(), data, headers) for number in range(2)]


async def found(world: World, kind: KeyCommand) -> dict[str, int]:
    """What the log of operations says, over both partitions."""
    entries = [done for done in await operations_log(world) if done["operation"] == kind]
    assert len(entries) == 2
    return {name: count for done in entries for name, count in done["found"].items()}


@pytest.mark.landing
async def test_a_key_is_erased_and_others_keep_theirs(world: World) -> None:
    work = Both(world.name)
    count = work.counting
    await started(world, work, retry=HOLDING)
    count.hooks.before = bug = Broken(("a", 1), ("b", 1))
    lane = await world.open()
    events = [world.event(count, key, i) for key in "abc" for i in range(3)]
    due = world.clock.now() + 60
    await world.post(*events, *(post(world, work.reminder(k=key, due=due)) for key in "abc"))
    await world.settled(count.source, work.reminder.TOPIC)
    await world.until(lambda: lane.lane.counters.dead_letters == 2 and not lane.lane.backlog)
    wanted = {"counts": 1, "tallies": 1, "asks": 1, "timers": 1, "waiting": 1, "dead_letters": 1}

    await world.post(*about_key(world, KeyCommand.FIND, "a"))
    await world.settled(world.app.layout.operations)
    assert await found(world, KeyCommand.FIND) == wanted
    assert len(await letters(world)) == 2
    await world.post(*about_key(world, KeyCommand.ERASE, "a"))
    await world.settled(world.app.layout.operations)
    assert await found(world, KeyCommand.ERASE) == wanted
    assert {letter.key for letter in await letters(world)} == {b"b"}
    assert await counts(world) == {"b": 1, "c": 3}
    for table in ("counts", "tallies", "asks", "lane", "dead_letters"):
        assert not [key for _, key in await latest(world, table) if b"\0\1a" in key], table

    bug.mend()
    again = world.event(count, "a", 9)
    await world.post(*events[:3], again)  # three duplicates
    await world.settled(count.source)
    await world.until(lambda: not lane.lane.backlog)
    await lane.stop()
    assert await counts(world) == {"a": 1, "b": 1, "c": 3}
    await check_store(world)


async def test_it_waits_for_what_is_under_way_of_the_key(fake: FakeWorld) -> None:
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def ask(key: str, number: int) -> None:
        under_way.set()
        await go_on.wait()

    work = asking(fake.name, ask)
    await started(fake, work)
    lane = await opened(fake, fake.event(work, "a", 0))
    await under_way.wait()
    await fake.post(*about_key(fake, KeyCommand.ERASE, "a"))
    await fake.passes(5, real=0)
    assert lane.lane.counters.operations == 0
    go_on.set()
    await stopped(fake, lane, work.source, fake.app.layout.operations)
    assert await found(fake, KeyCommand.ERASE) == {"counts": 1}
    assert await counts(fake) == {}


async def test_objects_of_what_is_erased_are_named(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=LATER)
    parcels.work.hooks.before = Outage()
    posts = [await parcels.post("a", number, 2 * THRESHOLD) for number in range(3)]
    lane = await fake.open()
    await fake.settled(parcels.work.source)
    await fake.post(*about_key(fake, KeyCommand.ERASE, "a"))
    await stopped(fake, lane, fake.app.layout.operations)
    names = {dict(each.headers)["ce_dataref"].decode().split("/", 3)[3] for each in posts}
    logged = [done["objects"] for done in await operations_log(fake)]
    assert names == {name for objects in logged for name in objects}
    await nothing_waits(fake)


async def test_key_of_many_rows_is_erased_in_turns(fake: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "MOST_ROWS", 3)
    work = naming(fake.name)
    await fake.start(work)
    lane = await opened(fake, post(fake, work.message(k="a", names=tuple("uvwxyz!"))))
    for left in (4, 1, 0):
        await fake.post(*about_key(fake, KeyCommand.ERASE, "a", turn=left))
        await fake.settled(fake.app.layout.operations)
        assert len(await rows(fake)) == left
        assert any(done["more"] for done in (await operations_log(fake))[-2:]) == (left > 0)
    await lane.stop()
