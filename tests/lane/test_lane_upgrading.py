"""Deploys under load: workers of two versions side by side, lanes that go to the new one and back.

Classes inside functions: their annotations must be real, not text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

from lane_checker import check, latest
from lane_sagas import TRIPS, TripWanted, trips
from lane_scenes import post, rows_of, some
from lane_workloads import Tally, Workload, counting
from lane_worlds import FakeWorld, Post, World
from test_lane_renamed import renamed
from test_lane_saga_versions import deleted, old

from streams.engine.life.positions.declared import declare
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import Schemas, avro, decode_row
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.row_keys import split_row_key
from streams.model.schema_versions import nothing_frozen
from streams.model.table import Table

KEYS = "abcdefgh"
#: Tables of the handlers that are added.
ROWS = ("tallies", "settled")
#: Of each version the fields, and how its handler reads the sum. `total` becomes `total_cents` in three
#: deploys; `note` goes, and `seen` comes.
VERSIONS: Sequence[tuple[tuple[str, ...], Callable[[Any], int]]] = (
    (("total", "note"), lambda it: it.total),
    (("total", "total_cents", "note", "seen"), lambda it: it.total_cents or it.total),
    (("total", "total_cents", "seen"), lambda it: it.total_cents),
    (("total_cents", "seen"), lambda it: it.total_cents),
)


async def rolled(
    world: World,
    versions: Sequence[Application],
    posted: Callable[[Application], Sequence[Post]],
    source: str,
) -> None:
    """Each version beside the next, with a lane each, in both ways; then the next one alone. Messages of both
    come while lanes run, and while they stop.
    """
    machines = [world.stores() for _ in versions]
    for before, after in pairwise(range(len(versions))):
        for pair in ((before, after), (after, before), (after, after)):
            lanes = [
                await world.open(lane, app=versions[each], stores=machines[each])
                for lane, each in enumerate(pair)
            ]
            await world.post(*(one for each in pair for one in posted(versions[each])))
            await world.settled(source)
            await world.post(*(one for each in reversed(pair) for one in posted(versions[each])))
            for lane in lanes:
                await lane.stop()
    world.app = versions[-1]
    lanes = [await world.open(lane, stores=machines[-1]) for lane in range(2)]
    await world.settled(source)
    await world.until(lambda: not any(lane.lane.backlog for lane in lanes))


def paying(prefix: str, fields: Sequence[str], read: Callable[[Any], int]) -> Workload:
    """A service that sums up payments, with these fields in its message and in its row."""
    numbers = dict.fromkeys(fields, int)
    names = {**dict.fromkeys(fields, 0), "__module__": __name__}
    key = {"TOPIC": f"{prefix}.paid", "key": property(lambda paid: paid.k)}
    Paid = type(Message)(  # noqa: N806 - a class
        "Paid", (Message,), {**names, **key, "__annotations__": {"k": str, **numbers}}, frozen=True
    )
    Account = type(Row)("Account", (Row,), {**names, "__annotations__": numbers}, frozen=True)  # noqa: N806

    @Service("bank").handler(account=Table("accounts", Account))
    def pay(paid: Paid, account: Account | None) -> Outcome:
        total = read(paid) + (read(account) if account else 0)
        return outcome(account=Account(**dict.fromkeys(fields, total)))

    return Workload(choreography(on(Paid, pay)), Paid, Paid)


async def test_fields_come_go_and_are_renamed_side_by_side(world: World) -> None:
    works = [paying(world.name, *version) for version in VERSIONS]
    codecs, ids = avro(nothing_frozen, Schemas()), count()
    first = await world.start(works[0], lanes=2, codecs=codecs)
    versions = [first, *(world.cut_into(work, lanes=2, codecs=codecs) for work in works[1:])]
    source = works[0].source

    def posted(app: Application) -> list[Post]:
        fields, _ = VERSIONS[versions.index(app)]
        made = works[versions.index(app)].made
        return [post(world, made(k=key, **dict.fromkeys(fields, 1)), next(ids), app) for key in KEYS]

    await rolled(world, versions, posted, source)
    codec = world.app.tables["accounts"].codec
    rows = {key: decode_row(codec, value) for (_, key), value in (await latest(world, "accounts")).items()}
    totals = {split_row_key(key)[0].decode(): row.total_cents for key, row in rows.items()}
    assert totals == dict.fromkeys(KEYS, 2 * 2 * 3 * 3)


async def test_a_renamed_handler_shares_its_past_side_by_side(world: World) -> None:
    work, events = counting(world.name), list[Post]()
    before = await world.start(work, lanes=2)
    after = world.cut_into(renamed(work, "bench.count"), lanes=2)

    def posted(_: Application) -> list[Post]:
        new = some(world, work, range(len(events), len(events) + 1), KEYS)
        events.extend(new)
        return events[-2 * len(KEYS) :]  # those before come twice

    await rolled(world, [before, after], posted, work.source)
    await check(world, work, events)


async def test_sagas_of_two_versions_end_side_by_side(fake: FakeWorld) -> None:
    before = await fake.start(trips(fake.clock, versions=[old()]), lanes=2)
    both = trips(fake.clock, versions=[replace(deleted(), version=2), old()])
    after, number = fake.cut_into(both, lanes=2), count()

    def posted(_: Application) -> list[Post]:
        return [post(fake, TripWanted(k=f"{key}{next(number)}", to="home")) for key in KEYS]

    await rolled(fake, [before, after], posted, TripWanted.TOPIC)
    await fake.passes(120, real=0)
    rows = (await rows_of(fake, TRIPS)).values()
    assert len(rows) == 2 * 2 * 3 * len(KEYS)
    assert {row.status for row in rows} == {"completed"}
    steps = {tuple(step.name for step in row.steps) for row in rows}
    assert steps == {("seat", "money", "ticket"), ("seat", "extra", "money", "ticket")}


async def test_an_added_handler_begins_where_the_application_is(fake: FakeWorld) -> None:
    bare, full = counting(fake.name), counting(fake.name, tallied=True, settled=True)
    await fake.start(bare)
    lane = await fake.open()
    await fake.post(*some(fake, bare, range(3), KEYS))
    await fake.settled(bare.source)
    await lane.stop()
    after = fake.cut_into(full, lanes=1)
    await fake.make_topics(after, [spec.name for spec in declare(after, replication=1)])
    lane = await fake.open(app=after)
    await fake.post(*some(fake, full, range(3, 5), KEYS))
    await fake.settled(full.source)
    await fake.settled(full.output)
    await lane.stop()
    fake.app = after
    seen = {name: {row.n for row in (await rows_of(fake, Table(name, Tally))).values()} for name in ROWS}
    assert seen == {"tallies": {2}, "settled": {5}}, "the topic of `settled` was never handled before"
