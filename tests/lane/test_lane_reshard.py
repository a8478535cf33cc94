"""More partitions by a copy into another application's topics: nothing is lost or doubled by kills."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from lane_checker import check, check_store, counts, latest
from lane_desk import Broken, letter_ids, operation, order_of
from lane_failing import HOLDING, PATIENT, nothing_waits
from lane_pausing import KEYS, commanded, reasons, some, states
from lane_scenes import handled, post, rows_of, until_so
from lane_workloads import Tally, counting, reminding
from lane_worlds import FakeWorld, Running, World

from streams.engine.life.positions import reshard
from streams.engine.life.positions.reshard import Reshard, Stage
from streams.errors import Fenced, LayoutMismatch, ReshardRefused
from streams.model.application import Application
from streams.model.choreography import choreography
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.table import Table
from streams.ports import TP
from streams.testing.cluster import FakeCluster
from streams.testing.faults import LaneKilled, ScriptedFaults

TALLY, TALLIES = "bench.tally", Table("tallies", Tally)
POINTS = ("begun", "sent", "offsets_sent", "committed")


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reshard, "_RECORDS", 3)


class Both:
    """Counts and timers in one application."""

    def __init__(self, name: str) -> None:
        self.counting, self.timers = counting(name, tallied=True), reminding(name)
        routes = (*self.counting.wiring.routes.values(), *self.timers.wiring.routes.values())
        self.wiring, self.resources = choreography(*routes), dict[str, Any]()
        self.reminder = next(iter(self.timers.wiring.routes.values())).message


def wider(world: World, work: Any, partitions: int, lanes: int, name: str = "wide") -> Application:
    """The same application under another id."""
    layout = replace(world.app.layout, app_id=f"{world.name}-{name}", partitions=partitions, lanes=lanes)
    return Application(layout, work.wiring, json_without_schema, lane_options=world.app.lane_options)


async def ordered(world: World, command: HandlerCommand) -> None:
    await world.post(*commanded(world, command, TALLY))
    await world.settled(world.app.layout.operations)


async def prepared(world: World, app: Application, faults: Any = None) -> Reshard:
    """A reshard whose topics are there."""
    layout = app.layout
    names = [
        *app.changelogs,
        *app.repartitions,
        layout.operations,
        layout.operations_log,
        layout.announcements,
    ]
    if not (await world.cluster.identity([names[0]])).topics:
        await world.make_topics(app, names)
    run = Reshard(world.app.layout, layout, list(app.routes), world.cluster, faults)
    world.at_end.append(run.close)
    return run


async def resharded(world: World, app: Application, faults: Any = None) -> dict[str, int]:
    """All of it, as the command does it."""
    run = await prepared(world, app, faults)
    await run.begin()
    await run.copy()
    found = await run.verify()
    await run.settle()
    for topic in app.message_codecs:
        await world.add_partitions(topic, app.layout.partitions)
    await run.end()
    assert await run.progress() is Stage.DONE
    return found


async def taken_over(world: World, app: Application) -> list[Running]:
    """The lanes of the new application."""
    world.app, world.name, world.machine = app, app.layout.app_id, world.stores()
    lanes = [world.lane(number) for number in range(app.layout.lanes)]
    await world.until(lambda: all(lane.lane.state == "open" for lane in lanes))
    return lanes


@pytest.mark.promise("reshard", "killed at each step of its transactions")
@pytest.mark.landing
async def test_all_that_an_application_has_comes_along_through_kills(world: World) -> None:
    work = Both(world.name)
    count = work.counting
    await world.start(work, partitions=2, lanes=1, retry=HOLDING, breaker=PATIENT, outage_patience=0.0)
    count.hooks.before = bug = Broken(("a", 0))
    lane = await world.open()
    await ordered(world, HandlerCommand.PAUSE)
    events = some(world, count, range(3))
    due = world.clock.now() + 3
    reminders = [work.reminder(k=key, due=due) for key in KEYS]
    await world.post(*events, *(post(world, message) for message in reminders))
    await world.settled(count.source, work.reminder.TOPIC)
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    assert await reasons(world) == {"paused": len(KEYS), "dead": 1}

    app, found, kills = wider(world, work, 6, 2), dict[str, int](), 0
    while not found:
        (faults := ScriptedFaults()).kill_at(POINTS[kills % 4], 1 + kills // 4 if world.is_fake else 6)
        with suppress(LaneKilled):
            found = await resharded(world, app, faults)
        kills += len(faults.happened)
    assert kills >= (15 if world.is_fake else 3)
    assert found["counts"] == len(KEYS) - 1

    former = world.app.layout.operations.encode()
    lanes = await taken_over(world, app)
    assert not any(former in key + value for (_, key), value in (await latest(world, "lane")).items())
    assert set(await states(world, TALLY)) == set(range(6))
    bug.mend()
    await world.post(*events, *(more := some(world, count, range(3, 5))))
    (letter,) = await letter_ids(world)
    (home,) = [each.lane for each in lanes if each.lane.number == app.layout.lane_of_key("a")]
    await world.post(operation(world, LetterCommand.REPLAY, letter))
    await world.until(lambda: home.counters.replayed == 1)
    await ordered(world, HandlerCommand.RESUME)
    await world.settled(count.source)

    async def rung() -> bool:
        return await counts(world, "rings") == dict.fromkeys(KEYS, 1)

    await until_so(world, rung)
    await world.until(lambda: not any(lane.lane.backlog for lane in lanes))
    for lane in lanes:
        await lane.stop()
        await check_store(world, lane.lane.number)
    await nothing_waits(world)
    await check(world, count, events + more)
    for key in KEYS:
        assert await order_of(world, count, key) == list(range(5))
    assert await rows_of(world, TALLIES) == {key: Tally(n=5) for key in KEYS}


async def counted(world: World) -> tuple[Any, list[Any], Application]:
    """An application that has counted and stopped, and the same one with more partitions."""
    work = counting(world.name)
    await world.start(work, partitions=2, lanes=1)
    events = some(world, work, range(2))
    await handled(world, work, events)
    return work, events, wider(world, work, 4, 2)


async def shut(world: World, app: Application, match: str) -> None:
    """None of its lanes opens."""
    lane = world.lane(0, app=app, stores=world.stores())
    with pytest.raises(LayoutMismatch, match=match):
        await lane.ended()


@pytest.mark.promise("reshard")
async def test_no_lane_of_either_opens_until_it_is_done(fake: FakeWorld) -> None:
    work, events, app = await counted(fake)
    old, pause = fake.app, (faults := ScriptedFaults()).pause_at("staged")
    await fake.post(*(more := some(fake, work, range(2, 3))))
    frozen = fake.lane(faults=faults)
    await pause.reached()
    run = await prepared(fake, app)
    with pytest.raises(ReshardRefused, match="messages are left to handle: 8 of"):
        await run.begin()
    await handled(fake, work, stores=fake.stores())  # by another worker
    await run.begin()
    await shut(fake, old, "was resharded: set STEADFAUST_APP_ID")
    await shut(fake, app, "is not complete")
    await resharded(fake, app)
    with pytest.raises(Fenced):
        await run.end()
    pause.resume()
    with pytest.raises(LayoutMismatch, match="was resharded"):
        await frozen.ended()
    assert frozen.lane.commits == 0
    for lane in await taken_over(fake, app):
        await lane.stop()
    await check(fake, work, events + more)


@pytest.mark.promise("reshard")
async def test_it_can_be_cancelled_until_all_is_copied(fake: FakeWorld) -> None:
    work, events, app = await counted(fake)
    run, lane = await prepared(fake, app), await fake.open()
    await run.begin()
    await fake.post(*(more := some(fake, work, range(2, 3))))  # by a client that was not stopped
    with pytest.raises(LayoutMismatch, match="was resharded"):
        await lane.ended()
    assert lane.lane.fenced == 1
    await run.copy()
    with pytest.raises(ReshardRefused, match="messages are left to handle"):
        await run.settle()
    await run.cancel()
    await handled(fake, work)
    await check(fake, work, events + more)
    with pytest.raises(ReshardRefused, match="has topics already: delete those"):
        await run.begin()
    other = wider(fake, work, 4, 2, name="other")
    await resharded(fake, other)
    with pytest.raises(ReshardRefused, match="no reshard of"):
        await (await prepared(fake, other)).cancel()
    for lane in await taken_over(fake, other):
        await lane.stop()
    await check(fake, work, events + more)


@pytest.mark.promise("reshard")
@pytest.mark.parametrize(
    ("table", "key"), [("counts", b"\0\1aa"), ("inbox", None), ("lane", b"hbench.count")]
)
async def test_a_row_that_is_not_as_it_was_is_noticed(fake: FakeWorld, table: str, key: bytes | None) -> None:
    _, _, app = await counted(fake)
    run = await prepared(fake, app)
    await run.begin()
    await run.copy()
    assert (await run.verify())["counts"] == len(KEYS)
    fake.cluster.produce(TP(app.layout.changelog(table), 1), key, b"12345678{}", [])
    with pytest.raises(ReshardRefused, match=rf"{table}-changelog\[1\] is not what .* has"):
        await run.verify()


@pytest.mark.parametrize(("partitions", "app_id"), [(5, "x"), (2, "x"), (1, "x"), (4, "lane")])
def test_other_numbers_than_multiples_are_refused(partitions: int, app_id: str) -> None:
    with pytest.raises(ReshardRefused, match="a multiple"):
        Reshard(Layout("lane", 2, 1), Layout(app_id, partitions, 1), [], FakeCluster({}))
