"""Messages and rows of an unknown schema wait, while everything else goes on."""

import asyncio
from itertools import islice
from typing import Any, NamedTuple

import pytest
from lane_checker import check_store, dead_letters
from lane_desk import letter_ids, operated, operation
from lane_failing import Failing, expiring, nothing_waits, pass_time
from lane_pausing import asked
from lane_scenes import cleared, died_of, handled, opened, operated_on, some, stopped
from lane_workloads import MADE_NEWER, MADE_OLDER, avro_codecs, counting
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs

from streams.engine.waiting.waiting import MOST_LOGGED
from streams.errors import TransientError
from streams.model.codecs import JsonCodec, Schemas, fingerprint_of
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.policy.retry import RetryPolicy
from streams.ports import TP


def written_as(post: Post, fingerprint: str, value: bytes) -> Post:
    headers = [h for h in post.headers if h[0] != "schema-fingerprint"]
    return post._replace(value=value, headers=[*headers, ("schema-fingerprint", fingerprint.encode())])


#: k, i, colour in the order of MADE_NEWER: colour, i, k.
def newer(post: Post, key: str, i: int) -> Post:
    return written_as(
        post, fingerprint_of(MADE_NEWER), b"\x06red" + bytes([2 * i, 2 * len(key)]) + key.encode()
    )


class Unannounced(NamedTuple):
    """A lane whose workers do not know yet what some messages were written with."""

    work: Any
    schemas: Schemas

    def announce(self) -> None:
        self.schemas.add(MADE_NEWER)


async def begun(world: World, *, work: Any = None, **options: Any) -> Unannounced:
    begun = Unannounced(work or counting(world.name), Schemas())
    await world.start(begun.work, codecs=avro_codecs(begun.schemas), **options)
    return begun


def keys(world: World, number: int, partition: int = 0) -> list[str]:
    """Keys of one partition."""
    names = (f"k{n}" for n in range(1000))
    found = (name for name in names if world.app.layout.partition_of(name.encode()) == partition)
    return list(islice(found, number))


async def waits(world: World, lane: Running, n: int) -> None:
    """So many keys wait for a schema, and all that came is committed."""
    await world.until(lambda: awaited(lane) == n and not lane.lane.backlog)


def awaited(lane: Running) -> int:
    return sum(each.keys for gate in lane.lane.gates.values() for each in gate.unread.awaited().values())


@pytest.mark.promise("unknown-schema")
async def test_a_message_of_an_unknown_schema_waits_alone(world: World) -> None:
    work, _ = unannounced = await begun(world)
    (here, near), (there,) = keys(world, 2), keys(world, 1, partition=1)
    first, waiting = world.event(work, here, 0), newer(world.event(work, here, 1), here, 1)
    behind = [world.event(work, here, i) for i in range(2, 5)]
    others = [world.event(work, key, i) for key in (near, there) for i in range(3)]
    lane = await opened(world, first, waiting, *behind, *others)
    await world.settled(work.source)  # its partition is committed
    assert set(work.hooks.calls) == {(here, 0), *((key, i) for key in (near, there) for i in range(3))}
    assert await dead_letters(world, work.source) == []
    unannounced.announce()
    await cleared(world, lane, lambda: len(work.hooks.calls) == 11)
    assert [i for key, i in work.hooks.calls if key == here] == [0, 1, 2, 3, 4]
    assert len(await world.records(work.output)) == 11


@pytest.mark.promise("unknown-schema")
async def test_what_waits_survives_retention_and_loss_of_the_disk(world: World) -> None:
    work, _ = unannounced = await begun(world)
    key = keys(world, 1)[0]
    lane = await opened(world, newer(world.event(work, key, 0), key, 0), world.event(work, key, 1))
    await waits(world, lane, 1)
    await stopped(world, lane, work.source)
    await world.truncate(TP(work.source, 0), 2)
    again = await world.open(stores=(elsewhere := world.stores()))
    assert awaited(again) == 1
    unannounced.announce()
    await cleared(world, again, lambda: work.hooks.calls == [(key, 0), (key, 1)], stores=elsewhere)


@pytest.mark.promise("unknown-schema")
async def test_what_waits_does_not_fill_the_lane_up(world: World) -> None:
    work, _ = unannounced = await begun(world, max_backlog=20)
    here, there = keys(world, 60), keys(world, 5, partition=1)
    await world.post(*(newer(world.event(work, key, 1), key, 1) for key in here))
    lane = await opened(world, *(world.event(work, key, 0) for key in (*here, *there)))
    await waits(world, lane, 60)
    await world.until(lambda: len(work.hooks.calls) == 5)
    unannounced.announce()
    await world.until(lambda: len(work.hooks.calls) == 125)
    await world.settled(work.source)
    await world.until(lambda: not lane.lane.backlog)
    await lane.stop()
    for key in here:
        assert [i for each, i in work.hooks.calls if each == key] == [1, 0]
    await check_store(world)
    await nothing_waits(world)


@pytest.mark.promise("unknown-schema")
async def test_a_schema_never_announced_makes_a_dead_letter(world: World) -> None:
    work, _ = await begun(world, schema_patience=2.0)
    key = keys(world, 1)[0]
    began = world.clock.now()
    lane = await opened(world, newer(world.event(work, key, 0), key, 0), world.event(work, key, 1))
    await waits(world, lane, 1)
    await world.until(lambda: work.hooks.calls == [(key, 1)])
    assert world.clock.now() - began >= 2.0
    await waits(world, lane, 0)
    await lane.stop()
    (letter,) = await dead_letters(world, work.source)
    headers = dict(letter.headers)
    assert headers["dlq-error-type"] == b"SchemaNeverAnnounced"
    assert fingerprint_of(MADE_NEWER).encode() in headers["dlq-error-message"]
    assert b"start a worker that has it" in headers["dlq-error-message"]
    await check_store(world)
    await nothing_waits(world)


@pytest.mark.promise("unknown-schema")
async def test_a_letter_of_a_late_schema_can_be_replayed(fake: FakeWorld) -> None:
    work, _ = unannounced = await begun(fake, schema_patience=0.0)
    lane = await opened(fake, newer(fake.event(work, "a", 7), "a", 7))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    (ident,) = await letter_ids(fake)
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident))
    assert work.hooks.calls == [], "not yet"
    unannounced.announce()
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident, operation_id="again"))
    await fake.until(lambda: lane.lane.counters.replayed == 1 and not lane.lane.backlog)
    await lane.stop()
    assert work.hooks.calls == [("a", 7)]


@pytest.mark.promise("unknown-schema")
@pytest.mark.parametrize("order_by", [None, lambda event: str(event.i % 2)])
@pytest.mark.parametrize("is_async", [False, True])
async def test_each_of_its_handlers_sees_it_once_in_order(
    world: World, order_by: Any, *, is_async: bool
) -> None:
    async def ask(key: str, i: int) -> None:
        await asyncio.sleep(0)

    work = counting(world.name, tallied=True, ask=ask if is_async else None, order_by=order_by)
    _, _ = unannounced = await begun(world, work=work)
    events = [world.event(work, "a", 0), newer(world.event(work, "a", 1), "a", 1)]
    events += some(world, work, range(2, 6), "a")
    lane = await opened(world, *events, *events)
    await waits(world, lane, 2)
    await world.settled(work.source)
    unannounced.announce()
    await world.until(lambda: len(work.hooks.calls) == 6)
    await world.until(lambda: not any(gate.queues for gate in lane.lane.gates.values()))
    await world.until(lambda: not lane.lane.backlog)
    await lane.stop()
    for odd in (0, 1):
        assert [i for _, i in work.hooks.calls if i % 2 == odd] == list(range(odd, 6, 2))
    if order_by is None:
        assert [i for _, i in work.hooks.calls] == list(range(6))
    await check_store(world)
    await nothing_waits(world)


@pytest.mark.promise("unknown-schema")
async def test_it_waits_behind_a_message_that_failed_before_it(world: World) -> None:
    work, _ = unannounced = await begun(world, retry=RetryPolicy(immediate=0, delays=(2.0,)))
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    lane = await opened(world, world.event(work, "a", 0), newer(world.event(work, "a", 1), "a", 1))
    await world.until(lambda: lane.lane.counters.waiting == 2)
    assert awaited(lane) == 0, "it was not looked at"
    await waits(world, lane, 1)  # its turn has come
    unannounced.announce()
    await cleared(world, lane, lambda: work.hooks.calls == [("a", 0), ("a", 0), ("a", 1)])


@pytest.mark.promise("unknown-schema")
async def test_it_expires_at_its_deadline_as_any_message(fake: FakeWorld) -> None:
    work, _ = await begun(fake)
    lane = await opened(fake, expiring(newer(fake.event(work, "a", 0), "a", 0), fake.clock.now() + 5.0))
    await waits(fake, lane, 1)
    await pass_time(fake, 4.5)
    assert await dead_letters(fake, work.source) == []
    await pass_time(fake, 1.0)
    await lane.stop()
    assert await died_of(fake, work) == ["MessageExpired"]


@pytest.mark.promise("unknown-schema")
@pytest.mark.parametrize(
    ("command", "paused_first"),
    [(HandlerCommand.PAUSE, False), (HandlerCommand.PAUSE, True), (HandlerCommand.DRAIN, False)],
)
async def test_a_paused_handler_s_messages_are_read_after_the_resume(
    fake: FakeWorld, command: HandlerCommand, *, paused_first: bool
) -> None:
    work, _ = unannounced = await begun(fake)
    lane = await fake.open()
    post = newer(fake.event(work, "a", 0), "a", 0)
    if not paused_first:
        await fake.post(post)
        await waits(fake, lane, 1)
    await asked(fake, command)
    await fake.until(lambda: len(lane.lane.gates["bench.count"].shut) == fake.app.layout.partitions)
    if paused_first:
        await fake.post(post)
        await fake.settled(work.source)
    unannounced.announce()
    await pass_time(fake, 5.0)
    assert work.hooks.calls == []
    await asked(fake, HandlerCommand.RESUME)
    await cleared(fake, lane, lambda: work.hooks.calls == [("a", 0)])


@pytest.mark.promise("unknown-schema")
async def test_a_replay_passes_what_waits_for_a_schema(fake: FakeWorld) -> None:
    work, _ = unannounced = await begun(fake, retry=RetryPolicy(immediate=0, delays=()))
    work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    lane = await opened(fake, fake.event(work, "a", 0), newer(fake.event(work, "a", 1), "a", 1))
    await waits(fake, lane, 1)
    await operated_on(fake, lane, LetterCommand.REPLAY)
    await fake.until(lambda: work.hooks.calls == [("a", 0)] * 2)
    unannounced.announce()
    await cleared(fake, lane, lambda: work.hooks.calls[2:] == [("a", 1)])


@pytest.mark.promise("unknown-schema")
@pytest.mark.slow("thousands of fingerprints")
async def test_fingerprints_that_somebody_makes_up_harm_nobody(fake: FakeWorld) -> None:
    work, _ = unannounced = await begun(fake, schema_patience=60.0)
    made_up = [written_as(fake.event(work, f"x{n}", 0), f"{n:016x}", b"?") for n in range(1, 3001)]
    await fake.post(*made_up, newer(fake.event(work, "a", 0), "a", 0))
    with capture_logs() as logs:
        lane = await fake.open()
        await waits(fake, lane, 3001)
        await fake.settled(work.source)
    assert 0 < sum(line["event"] == "schema_unknown" for line in logs) <= MOST_LOGGED
    unannounced.announce()
    announced = fake.clock.now()
    await fake.until(lambda: work.hooks.calls == [("a", 0)])
    assert fake.clock.now() - announced < 10.0
    await fake.until(lambda: lane.lane.counters.dead_letters == 3000 and not lane.lane.backlog)
    assert awaited(lane) == 0
    await lane.stop()
    await nothing_waits(fake)


async def test_older_newer_and_json_writers_are_read_by_our_schema(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas))
    schemas.add(MADE_NEWER)
    schemas.add(MADE_OLDER)
    post = world.event(work, "a", 7)
    older = written_as(world.event(work, "a", 0), fingerprint_of(MADE_OLDER), b"\x02a")
    json = written_as(world.event(work, "a", 1), "0" * 16, JsonCodec(work.made).encode(work.made(k="a", i=1)))
    bad = written_as(world.event(work, "a", 9), "0" * 16, b'{"k": 7}')
    await handled(world, work, [post, newer(world.event(work, "a", 3), "a", 3), bad, json, older])
    assert work.hooks.calls == [("a", 7), ("a", 3), ("a", 1), ("a", 0)]
    assert len(await dead_letters(world, work.source)) == 1


@pytest.mark.parametrize("fingerprint", [b"garbage", b"\xff\xfe", b"0123456789abcdef0", b"0123456789abcdeg"])
async def test_what_is_no_fingerprint_does_not_wait(fake: FakeWorld, fingerprint: bytes) -> None:
    work, schemas = counting(fake.name), Schemas()
    await fake.start(work, codecs=avro_codecs(schemas))
    post = fake.event(work, "a", 1)
    bad = [h for h in post.headers if h[0] != "schema-fingerprint"] + [("schema-fingerprint", fingerprint)]
    lane = await opened(fake, post._replace(headers=bad), fake.event(work, "a", 2))
    await fake.until(lambda: lane.handled == 1)
    await stopped(fake, lane, work.source)
    assert await died_of(fake, work) == ["Undecodable"]


@pytest.mark.promise("unknown-schema")
async def test_one_about_another_key_is_dead_once_read(fake: FakeWorld) -> None:
    work, _ = unannounced = await begun(fake)
    lane = await opened(fake, newer(fake.event(work, "a", 0), "b", 0), fake.event(work, "a", 1))
    await waits(fake, lane, 1)
    unannounced.announce()
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await fake.until(lambda: work.hooks.calls == [("a", 1)])
    await lane.stop()
    assert await died_of(fake, work) == ["KeyMismatch"]
    await check_store(fake)
    await nothing_waits(fake)


@pytest.mark.promise("unknown-schema")
async def test_what_was_announced_has_its_turn_in_a_full_lane(fake: FakeWorld) -> None:
    async def ask(key: str, i: int) -> None:
        await fake.clock.sleep(0.3)

    work, _ = unannounced = await begun(fake, work=counting(fake.name, ask=ask), max_in_flight=4)
    waiting, *others = keys(fake, 400)
    lane = await opened(fake, newer(fake.event(work, waiting, 0), waiting, 0))
    await waits(fake, lane, 1)
    await fake.post(*(fake.event(work, key, 0) for key in others))
    await fake.until(lambda: len(work.hooks.calls) > 8)
    unannounced.announce()
    await fake.until(lambda: (waiting, 0) in work.hooks.calls)
    assert len(work.hooks.calls) < 100
    await lane.stop()
