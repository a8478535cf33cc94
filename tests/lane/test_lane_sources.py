"""A topic of others is read as it is: any number of partitions, any keys, no ids, and its own form."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import pytest
from lane_checker import counts, latest
from lane_desk import letter_ids, operated, operation, results
from lane_pausing import asked, reasons, states
from lane_scenes import POINTS, opened, stopped, until_so
from lane_workloads import Count, Hooks
from lane_worlds import FakeWorld, Post, World

from streams.engine.life.positions.review import At, accept
from streams.engine.waiting import floods
from streams.errors import PermanentError, PositionLost, TransientError, WiringError
from streams.model import sources
from streams.model.choreography import Choreography, choreography, on, source
from streams.model.envelope import new_headers
from streams.model.handlers import Service
from streams.model.message import Message
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.outcome import Outcome, outcome
from streams.model.sources import SourceRecord
from streams.model.table import Table
from streams.ports import TP, Record
from tests.keyed import Keyed

pytestmark = pytest.mark.promise("sources")


@dataclass(frozen=True)
class Sourced:
    """Counts what is mapped from a source. `into` may be replaced by a test."""

    wiring: Choreography
    source: str
    made: type[Message]
    hooks: Hooks
    into: list[Any]
    resources: dict[str, Any] = field(default_factory=dict)


def sourced(prefix: str, **options: Any) -> Sourced:
    class Made(Keyed, frozen=True):
        TOPIC = f"{prefix}.made.v1"
        i: int = 0

    service, hooks = Service("bench"), Hooks()
    counted = Table("counts", Count)

    @service.handler(count=counted)
    def count(event: Made, count: Count | None) -> Outcome:
        hooks.before(event)
        hooks.calls.append((event.k, event.i))
        return outcome(count=Count(n=1 if count is None else count.n + 1))

    def mapped(record: SourceRecord) -> Made | None:
        if record.value is None or "customer" not in record.value:
            return None
        return Made(k=record.value["customer"], i=record.value["n"])

    into = [mapped]
    topic = f"{prefix}.orders"
    read = source(topic, into=lambda record: into[0](record), sends=(Made,), **options)
    return Sourced(choreography(read, on(Made, count)), topic, Made, hooks, into)


async def begun(world: World, there: int, **options: Any) -> Sourced:
    """Started with three partitions, and a source of so many."""
    work = sourced(world.name, **options)
    await world.start(work, partitions=3, max_batch=4, others={work.source: there})
    return work


def order(
    work: Sourced, customer: str, n: int, partition: int, key: bytes | None = b"k", **more: Any
) -> Post:
    return Post(work.source, partition, key, json.dumps({"customer": customer, "n": n, **more}).encode(), [])


def orders(work: Sourced, there: int, rounds: int = 3) -> list[Post]:
    return [
        order(work, customer, n, (place + n) % there, None if n == 1 else customer.encode())
        for n in range(rounds)
        for place, customer in enumerate("abcd")
    ]


async def dead_letters(world: World, work: Sourced) -> list[Record]:
    return await world.records(world.app.routes[work.source].dead_letters)


async def finished(world: World, lane: Any, calls: int, work: Sourced) -> None:
    await world.until(lambda: len(work.hooks.calls) >= calls)
    await stopped(world, lane, work.source, work.made.TOPIC)


@pytest.mark.landing
@pytest.mark.parametrize("there", [1, 3, 7])
async def test_each_record_is_handled_once_by_its_own_key(world: World, there: int) -> None:
    work = await begun(world, there)
    posts = orders(work, there)
    lane = await opened(world, *posts)
    await finished(world, lane, len(posts), work)
    assert sorted(work.hooks.calls) == sorted((c, n) for c in "abcd" for n in range(3))
    assert await counts(world) == dict.fromkeys("abcd", 3)
    assert len(await world.records(work.source)) == len(posts)  # nothing is written to it


@pytest.mark.parametrize("at", POINTS)
async def test_a_kill_at_any_step_of_a_commit_doubles_nothing(fake: FakeWorld, at: str) -> None:
    work = await begun(fake, 5)
    posts = orders(work, 5)
    fake.faults.kill_at(at, nth=2)
    await fake.post(*posts)
    await fake.lane().killed()
    lane = await fake.open()
    await stopped(fake, lane, work.source, work.made.TOPIC)
    assert not fake.faults.pending
    assert await counts(fake) == dict.fromkeys("abcd", 3)


async def test_partitions_that_are_added_are_read(world: World) -> None:
    work = await begun(world, 2)
    lane = await opened(world, order(work, "a", 0, 0))
    await world.until(lambda: len(work.hooks.calls) == 1)
    await world.add_partitions(work.source, 6)
    await world.post(*(order(work, "a", n, n) for n in range(1, 6)))
    await finished(world, lane, 6, work)
    assert await counts(world) == {"a": 6}


async def test_tombstones_and_records_for_others_are_passed_over(fake: FakeWorld) -> None:
    work = await begun(fake, 1)
    posts = [
        Post(work.source, 0, b"k", None, []),
        Post(work.source, 0, None, None, [("a", None), ("a", b"\xff"), ("", b"")]),
        Post(work.source, 0, b"k", b"{}", []),
        order(work, "a", 0, 0),
    ]
    lane = await opened(fake, *posts)
    await finished(fake, lane, 1, work)
    assert not await dead_letters(fake, work)
    assert await counts(fake) == {"a": 1}


HOSTILE = [
    ("ce_dataref", b"s3://elsewhere/x"),
    ("loopback", b"?"),
    ("ce_id", b""),
    ("ce_id", b"its own"),
    ("ce_expirytime", b"1970-01-01T00:00:00Z"),
    ("ce_source", b"\xff" * 2000),
    ("ce_correlationid", b"theirs"),
    ("ce_within", b"0"),
    ("steadfaust-source", b""),
    ("timer-due", b"0"),
    ("steadfaust-origin", b"0 0 0 other"),
    ("retry-handler", b"other"),
]


@pytest.mark.parametrize(("name", "value"), HOSTILE)
@pytest.mark.parametrize("has_value", [True, False])
async def test_no_header_of_a_source_means_anything_here(
    fake: FakeWorld, name: str, value: bytes, has_value: bool
) -> None:
    work = await begun(fake, 1)
    seen: list[SourceRecord] = []

    def into(record: SourceRecord) -> Message:
        seen.append(record)
        return work.made(k="a", i=record.offset)  # type: ignore[call-arg]

    work.into[0] = into
    value = fake.name.encode() if value == b"?" else value
    lane = await opened(fake, Post(work.source, 0, b"k", b"{}" if has_value else None, [(name, value)]))
    await finished(fake, lane, 1, work)
    assert [each.headers for each in seen] == [((name, value),)]
    (made,) = await fake.records(work.made.TOPIC)
    headers = dict(made.headers)
    assert headers["ce_correlationid"] == headers["ce_causationid"] != value
    assert await counts(fake) == {"a": 1}


async def test_records_of_one_id_are_handled_once(world: World) -> None:
    work = await begun(world, 2, id=sources.field("order.id"))
    posts = [order(work, "a", n, 0, order={"id": n // 2}) for n in range(4)]
    lane = await opened(world, *posts)
    await finished(world, lane, 2, work)
    assert work.hooks.calls == [("a", 0), ("a", 2)]


async def test_an_id_counts_for_all_partitions(world: World) -> None:
    work = await begun(world, 7, id=sources.field("order"))
    posts = [order(work, "a", n, partition, order=n) for n in range(2) for partition in range(7)]
    lane = await opened(world, *posts)
    await finished(world, lane, 2, work)
    assert sorted(work.hooks.calls) == [("a", 0), ("a", 1)]


async def test_a_header_may_be_the_id(fake: FakeWorld) -> None:
    work = await begun(fake, 1, id=sources.header("x-request-id"))
    posts = [order(work, "a", n, 0)._replace(headers=[("x-request-id", b"r-1")]) for n in range(2)]
    lane = await opened(fake, *posts, order(work, "a", 2, 0))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await stopped(fake, lane, work.source, work.made.TOPIC)
    assert work.hooks.calls == [("a", 0)]
    (letter,) = await dead_letters(fake, work)
    assert "no header x-request-id" in said(letter)


def said(letter: Record) -> str:
    return (dict(letter.headers)["dlq-error-message"] or b"").decode()


async def test_bad_records_are_dead_letters_and_replayed_by_todays_map(world: World) -> None:
    work = await begun(world, 1)
    was = work.into[0]

    def into(record: SourceRecord) -> Any:
        raise PermanentError("no customer")

    work.into[0] = into
    bad = [Post(work.source, 0, b"k", b"\xff\x00", [("h", b"1")]), order(work, "a", 7, 0, None)]
    lane = await opened(world, *bad)
    await world.until(lambda: lane.lane.counters.dead_letters == 2)
    await world.settled(work.source)
    undecodable, unmapped = await dead_letters(world, work)
    assert undecodable.value == b"\xff\x00"
    assert undecodable.headers[0] == ("h", b"1")
    assert "is not JSON" in said(undecodable)
    assert "no customer" in said(unmapped)
    work.into[0] = was
    for ident in await letter_ids(world):
        await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await finished(world, lane, 1, work)
    assert work.hooks.calls == [("a", 7)]


@pytest.mark.parametrize("value", [b"{}", b"", None])
@pytest.mark.parametrize("key", [b"k", b"", None])
async def test_a_record_that_waits_is_mapped_as_it_came(fake: FakeWorld, key: Any, value: Any) -> None:
    work = await begun(fake, 1, value=sources.raw())
    seen: list[SourceRecord] = []

    def into(record: SourceRecord) -> Any:
        seen.append(record)
        if len(seen) < 5:
            raise TransientError("not now")
        return work.made(k="a", i=0)  # type: ignore[call-arg]

    work.into[0] = into
    lane = await opened(fake, Post(work.source, 0, key, value, [("h", b"1"), ("h", b"")]))
    await finished(fake, lane, 1, work)
    assert seen == [seen[0]] * 5
    assert (seen[0].key, seen[0].value, seen[0].headers) == (key, value, (("h", b"1"), ("h", b"")))


async def test_records_of_a_waiting_key_wait_behind_it(fake: FakeWorld) -> None:
    work = await begun(fake, 1)
    was, failing = work.into[0], {("a", 0): 4}

    def into(record: SourceRecord) -> Any:
        made = was(record)
        if failing.get((made.k, made.i), 0):
            failing[made.k, made.i] -= 1
            raise TransientError("not now")
        return made

    work.into[0] = into
    posts = [order(work, "a", 0, 0, b"a"), order(work, "a", 1, 0, b"a"), order(work, "b", 0, 0)]
    lane = await opened(fake, *posts)
    await finished(fake, lane, 3, work)
    assert work.hooks.calls == [("b", 0), ("a", 0), ("a", 1)]


@pytest.mark.parametrize("bad", [5, b"x", "", "\ud800", None])
async def test_an_id_that_is_no_text_is_a_dead_letter(fake: FakeWorld, bad: Any) -> None:
    work = await begun(fake, 1, id=lambda record: bad if record.value["n"] == 0 else "fine")
    lane = await opened(fake, order(work, "a", 0, 0), order(work, "a", 1, 0))
    await finished(fake, lane, 1, work)
    (letter,) = await dead_letters(fake, work)
    assert "its id cannot be read" in said(letter)


@pytest.mark.parametrize("bad", [None, "abc", [1], True, 1.5, {"id": None}])
async def test_a_field_without_an_id_is_a_dead_letter(fake: FakeWorld, bad: Any) -> None:
    work = await begun(fake, 1, id=sources.field("order.id"))
    lane = await opened(fake, *(order(work, "a", n, 0, order=bad) for n in range(3)))
    await fake.until(lambda: lane.lane.counters.dead_letters == 3)
    await stopped(fake, lane, work.source)
    assert all("order.id is" in said(letter) for letter in await dead_letters(fake, work))


async def test_forged_ids_of_a_lane_mean_nothing(fake: FakeWorld) -> None:
    work = await begun(fake, 1)
    now = int(fake.clock.now() * 1000)
    forged = [
        ("ce_id", b"0-1-%d" % now),
        ("ce_source", work.source.encode()),
        ("steadfaust-source", b"0-0-%d" % now),
    ]
    lane = await opened(fake, order(work, "a", 0, 0)._replace(headers=forged), order(work, "a", 1, 0))
    await finished(fake, lane, 2, work)
    assert work.hooks.calls == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("partition", [1, 4])
async def test_keyless_records_of_a_large_source_are_held_back(fake: FakeWorld, partition: int) -> None:
    work = sourced(fake.name)
    await fake.start(work, partitions=3, others={work.source: 6}, max_waiting=20, hold_back=900.0)

    def into(record: SourceRecord) -> Any:
        raise TransientError("not now")

    work.into[0] = into
    posts = [order(work, "a", n, partition, None) for n in range(50)]
    lane = await opened(fake, *posts[:15])
    await fake.passes(2, real=0)
    await fake.post(*posts[15:])
    await fake.passes(2, real=0)
    assert not lane.lane.counters.dead_letters


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_smaller_source_created_again_can_be_accepted(fake: FakeWorld, lanes: int) -> None:
    work = sourced(fake.name)
    await fake.start(work, partitions=3, lanes=lanes, others={work.source: 1})
    running = [await fake.open(number) for number in range(lanes)]
    await fake.post(order(work, "a", 0, 0))
    await fake.until(lambda: len(work.hooks.calls) == 1)
    await fake.settled(work.source, work.made.TOPIC)
    for each in running:
        await each.stop()
    await fake.recreate(work.source)
    await accept(fake.app.layout, fake.cluster, work.source, range(3), At.AUTO)
    for number in range(lanes):
        await fake.open(number)
    await fake.post(order(work, "a", 1, 0))
    await fake.until(lambda: work.hooks.calls == [("a", 0), ("a", 1)])


async def test_clients_may_send_what_a_source_makes(world: World) -> None:
    work = await begun(world, 1)
    codec = world.app.message_codecs[work.made.TOPIC]
    headers = new_headers(work.made.TOPIC, "a", source="client", time=1e9, message_id="m-1")
    sent = world.raw(work.made.TOPIC, "a", codec.encode(work.made(k="a", i=7)), headers)  # type: ignore[call-arg]
    lane = await opened(
        world, order(work, "a", 0, 0), sent, sent._replace(partition=(sent.partition + 1) % 3)
    )
    await finished(world, lane, 2, work)
    assert sorted(work.hooks.calls) == [("a", 0), ("a", 7)]


async def test_a_source_is_not_among_the_topics_that_are_made(fake: FakeWorld) -> None:
    work = sourced(fake.name)
    app = await fake.start(work)
    assert work.source not in fake.cluster.ids
    assert app.routes[work.source].dead_letters == f"{fake.name}-{work.source}.dlq"
    assert await latest(fake, "counts") == {}


async def test_a_source_of_a_wrong_format_is_paused(world: World) -> None:
    work = sourced(world.name)
    await world.start(work, partitions=3, others={work.source: 5})
    bad = [Post(work.source, n % 5, b"k", b"<order/>", []) for n in range(400)]
    lane = await opened(world, *bad)
    await until_so(world, lambda: paused(world, work))
    letters = lane.lane.counters.dead_letters
    assert letters >= floods.MANY
    more = [Post(work.source, n % 5, b"k", b"<order/>", []) for n in range(2000)]
    await world.post(*more, order(work, "a", 0, 0))
    await world.passes(5, real=0.5)
    assert lane.lane.counters.dead_letters <= letters + 400
    assert not work.hooks.calls


async def paused(world: World, work: Sourced) -> bool:
    return set(await states(world, f"source.{work.source}")) == {0, 1, 2}


async def test_a_source_that_is_paused_is_not_read(world: World) -> None:
    work = await begun(world, 5)
    lane = await opened(world, order(work, "a", 0, 0))
    await world.until(lambda: len(work.hooks.calls) == 1)
    handler = f"source.{work.source}"
    await asked(world, HandlerCommand.PAUSE, handler)
    await world.post(*(order(work, "a", number, number) for number in range(1, 5)))
    await world.passes(5, real=0.5)
    assert not await reasons(world)
    assert len(work.hooks.calls) == 1
    await asked(world, HandlerCommand.RESUME, handler, operation_id="again")
    await finished(world, lane, 5, work)


async def test_a_few_bad_records_among_many_pause_nothing(fake: FakeWorld) -> None:
    work = await begun(fake, 1)
    bad = [Post(work.source, 0, b"k", b"<order/>", []) for _ in range(floods.MANY)]
    good = [order(work, "a", number, 0) for number in range(10)]
    posts = [*good * 150, *bad]
    lane = await opened(fake, *(post for number in range(100) for post in posts[number::100]))
    await finished(fake, lane, 1500, work)
    assert lane.lane.counters.dead_letters == floods.MANY
    assert not await states(fake, f"source.{work.source}")


async def test_a_map_that_raises_gives_its_record_up_at_once(fake: FakeWorld) -> None:
    work = await begun(fake, 1)
    was = work.into[0]
    work.into[0] = lambda record: was(record) if record.value["n"] else {}["missing"]
    lane = await opened(fake, order(work, "a", 0, 0), order(work, "a", 1, 0))
    await finished(fake, lane, 1, work)
    (letter,) = await dead_letters(fake, work)
    assert "`into` raised KeyError" in said(letter)


@pytest.mark.parametrize("made", [5, "text", b"bytes", {"a": 1}, [1], object()])
async def test_what_is_no_message_is_a_dead_letter(fake: FakeWorld, made: Any) -> None:
    work = await begun(fake, 1)
    work.into[0] = lambda record: made
    lane = await opened(fake, order(work, "a", 0, 0))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await stopped(fake, lane, work.source)
    (letter,) = await dead_letters(fake, work)
    assert "`into` returned" in said(letter)


@pytest.mark.parametrize("bad", [b"<order/>", b'{"customer": "?", "n": 0}'])
async def test_replays_that_fail_pause_nothing(fake: FakeWorld, bad: bytes) -> None:
    work = await begun(fake, 1)
    was = work.into[0]

    def into(record: SourceRecord) -> Any:
        made = was(record)
        if made is not None and made.k == "?":
            raise PermanentError("no customer")
        return made

    work.into[0] = into
    good = [order(work, "a", number, 0) for number in range(1200)]
    posts = [*good, *([Post(work.source, 0, b"k", bad, [])] * 110)]
    lane = await opened(fake, *(post for number in range(50) for post in posts[number::50]))
    await finished(fake, lane, 1200, work)
    lane = await fake.open()
    for ident in await letter_ids(fake):
        await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident))
    await fake.passes(5, real=0)
    assert not await states(fake, f"source.{work.source}")


async def test_a_source_is_not_edited(fake: FakeWorld) -> None:
    work = sourced(fake.name)
    await fake.start(work, others={work.source: 1}, edit_dead_letters=True)
    lane = await opened(fake, Post(work.source, 0, b"k", b"<order/>", []))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await fake.settled(work.source)
    (ident,) = await letter_ids(fake)
    await operated(fake, lane, operation(fake, LetterCommand.EDIT, ident, value=b"{}", headers=[]))
    assert await results(fake) == [("edit", "refused")]


async def test_a_group_without_an_offset_is_no_start(fake: FakeWorld) -> None:
    await late(fake, sources.group("old-grup"))
    lane = fake.lane()
    lane.may_fail = True
    with pytest.raises(PositionLost, match="that has no offset in it: correct the name"):
        await lane.ended()


async def late(world: World, start: Any) -> Sourced:
    """A source whose first record was written before it was read, and a second one from then on."""
    work = sourced(world.name, start=start)
    await world.start(work, partitions=3, others={work.source: 2})
    await world.post(*(order(work, "a", 0, number) for number in range(2)))
    return work


async def test_a_source_may_begin_at_its_end(world: World) -> None:
    work = await late(world, sources.latest())
    lane = await opened(world)
    await world.add_partitions(work.source, 3)
    await world.post(*(order(work, "a", 1, number) for number in range(3)))
    await finished(world, lane, 3, work)
    assert work.hooks.calls == [("a", 1)] * 3
    await world.post(order(work, "a", 2, 0))
    lane = await opened(world)
    await finished(world, lane, 4, work)
    assert work.hooks.calls == [*[("a", 1)] * 3, ("a", 2)]


async def test_a_source_may_begin_where_another_group_stands(world: World) -> None:
    work = await late(world, sources.group(f"{world.name}-old"))
    producer = world.cluster.transactions("old-program")
    await producer.start()
    await producer.begin()
    await producer.send_offsets({TP(work.source, 0): 1}, f"{world.name}-old")
    await producer.commit()
    await producer.discard()
    lane = await opened(world, order(work, "a", 1, 0))
    await finished(world, lane, 2, work)
    assert sorted(work.hooks.calls) == [("a", 0), ("a", 1)]


async def test_a_source_may_begin_at_a_time(fake: FakeWorld) -> None:
    work = await late(fake, sources.latest())
    await fake.passes(60, real=0)
    source = fake.app.wiring.sources()[work.source]
    source.start = sources.at(datetime.fromtimestamp(fake.clock.now() - 30, UTC))
    await fake.post(order(work, "a", 1, 0))
    await fake.passes(60, real=0)
    lane = await opened(fake, order(work, "a", 2, 1))
    await finished(fake, lane, 2, work)
    assert sorted(work.hooks.calls) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("time", [datetime(2026, 11, 1), 1.0, "2026-11-01"])  # noqa: DTZ001 - refused
def test_the_time_of_a_start_has_a_time_zone(time: Any) -> None:
    with pytest.raises(WiringError, match="give a datetime with a time zone"):
        sources.at(time)


def test_a_source_cannot_be_sent_to() -> None:
    class Taken(Keyed, frozen=True):
        TOPIC = "shop.orders"

    service = Service("shop")

    @service.handler(sends=(Taken,))
    def send(event: Taken) -> Outcome:
        return outcome(send=[event])

    def into(record: SourceRecord) -> Taken:
        raise AssertionError(record)

    with pytest.raises(WiringError, match=r"is sent to shop\.orders, which is a source"):
        choreography(source("shop.orders", into=into))


async def no_map(record: SourceRecord) -> Keyed:
    raise AssertionError(record)


async def no_maps(record: SourceRecord) -> Any:
    yield record


class Untold:
    async def __call__(self, record: SourceRecord) -> Keyed:
        raise AssertionError(record)


@pytest.mark.parametrize(
    "wrong",
    [
        {"into": None},
        {"into": no_map},
        {"into": no_maps},
        {"into": Untold()},
        {"id": "number"},
        {"id": 5},
        {"sends": [int]},
        {"sends": Keyed},
        {"start": sources.latest},
        {"start": "latest"},
        {"value": sources.json},
        {"value": dict},
    ],
)
def test_wrong_arguments_of_a_source_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WiringError, match=r"source\('shop\.orders'\)"):
        source("shop.orders", **{"into": lambda record: None, **wrong})


@pytest.mark.parametrize("topic", ["", "a b", "a/b", 5, None])
def test_a_source_has_a_name_that_kafka_takes(topic: Any) -> None:
    with pytest.raises(WiringError, match="give a topic of 1 to 249"):
        source(topic, into=lambda record: None, sends=())


class Bought(Keyed, frozen=True):
    TOPIC = "shop.bought"


class Sold(Keyed, frozen=True):
    TOPIC = "shop.sold"


def one(record: SourceRecord) -> Bought: ...  # type: ignore[empty-body]
def perhaps(record: SourceRecord) -> "Bought | None": ...
def several(record: SourceRecord) -> Iterator[Bought | Sold]: ...  # type: ignore[empty-body]
def annotated(record: SourceRecord) -> Annotated[list[Bought] | Bought, "why"]: ...  # type: ignore[empty-body]


class Mapped:
    def __call__(self, record: SourceRecord) -> Sold: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("into", "makes"),
    [
        (one, {Bought}),
        (perhaps, {Bought}),
        (several, {Bought, Sold}),
        (annotated, {Bought}),
        (partial(one), {Bought}),
        (Mapped(), {Sold}),
        (Mapped().__call__, {Sold}),
    ],
)
def test_an_annotation_says_what_a_source_makes(into: Any, makes: set[type[Message]]) -> None:
    made = source("..shop", into=into).source
    assert made is not None
    assert sorted(made.handler.sends, key=str) == sorted(makes, key=str)


def test_what_a_source_makes_is_declared() -> None:
    with pytest.raises(WiringError, match="annotate what it returns, or give sends"):
        source("shop.orders", into=lambda record: None)
