"""Async handlers overlap by key, and messages of an unknown schema wait, while everything else goes on."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_workloads import COUNT, MADE_NEWER, MADE_OLDER, asking, avro_codecs, counting
from lane_worlds import FakeWorld, Post, World

from streams.codecs import Schemas, fingerprint_of
from streams.errors import HandlerFailed, PermanentError
from streams.ports import TP, Write


class Outside:
    """What handlers ask: each question waits at a gate of its own until it is let through."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.waiting: set[tuple[str, int]] = set()
        self.most = 0
        self.errors: dict[tuple[str, int], Exception] = {}
        self._gates: defaultdict[tuple[str, int], asyncio.Event] = defaultdict(asyncio.Event)
        self._open = False

    async def ask(self, key: str, i: int) -> None:
        self.asked.append((key, i))
        self.waiting.add((key, i))
        self.most = max(self.most, len(self.waiting))
        try:
            if not self._open:
                await self._gates[key, i].wait()
        finally:
            self.waiting.discard((key, i))
        if (key, i) in self.errors:
            raise self.errors.pop((key, i))

    def let(self, key: str, i: int) -> None:
        self._gates[key, i].set()

    def let_all(self) -> None:
        self._open = True
        for gate in self._gates.values():
            gate.set()


@pytest.fixture
def outside() -> Outside:
    return Outside()


async def position(world: World, topic: str, partition: int = 0) -> int:
    tp = TP(topic, partition)
    return int((await world.cluster.committed(world.name, [tp])).get(tp, 0))


async def test_handlers_of_different_keys_overlap_and_those_of_one_key_follow_each_other(
    world: World, outside: Outside
) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work)
    events = [world.event(work, key, i) for i in range(3) for key in "abcd"]
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: len(outside.waiting) == 4)
    assert outside.waiting == {(key, 0) for key in "abcd"}
    outside.let("b", 0)
    await world.until(lambda: ("b", 1) in outside.waiting)
    assert ("a", 1) not in outside.asked
    outside.let_all()
    await world.settled(work.source)
    await lane.stop()
    await check(world, work, events)
    await check_store(world)
    for key in "abcd":
        assert [i for k, i in outside.asked if k == key] == [0, 1, 2]


async def test_what_is_finished_is_committed_but_never_past_a_message_under_way(
    world: World, outside: Outside
) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work, partitions=1)
    keys = ["a", "b", "c", "d"]
    await world.post(*(world.event(work, key, 0) for key in keys))
    lane = await world.open()
    await world.until(lambda: len(outside.waiting) == 4)
    for key in "acd":
        outside.let(key, 0)
    await world.until(lambda: lane.handled == 3)
    await world.until(lambda: lane.lane.commits == 1)
    assert await position(world, work.source) == 1
    assert lane.lane.backlog == 3
    outside.let("b", 0)
    await world.settled(work.source)
    await lane.stop()
    await check(world, work, [world.event(work, key, 0) for key in keys])


async def test_a_lane_killed_with_messages_under_way_runs_them_again(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work, partitions=1)
    events = [world.event(work, key, i) for i in range(2) for key in "abc"]
    await world.post(*events)
    world.faults.kill_at("applied")
    lane = world.lane()
    await world.until(lambda: len(outside.waiting) == 3)
    outside.let("a", 0)
    outside.let("c", 0)
    await lane.killed()
    assert world.faults.pending == []
    outside.let_all()
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    assert outside.asked.count(("b", 0)) == 2
    assert outside.asked.count(("c", 0)) == 2
    assert outside.asked.count(("a", 0)) == 1
    await check(world, work, events)
    await check_store(world)


async def test_no_more_keys_than_allowed_are_under_way_at_once(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work, max_in_flight=3)
    events = [world.event(work, f"k{n}", i) for i in range(2) for n in range(20)]
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: len(outside.waiting) == 3)
    outside.let_all()
    await world.settled(work.source)
    await lane.stop()
    assert outside.most == 3
    await check(world, work, events)


async def test_a_duplicate_of_a_message_under_way_is_dropped(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work)
    event = world.event(work, "a", 0)
    await world.post(event)
    lane = await world.open()
    await world.until(lambda: outside.waiting)
    await world.post(event, event)
    await world.until(lambda: lane.lane.counters.duplicates == 2)
    assert await position(world, work.source, event.partition) == 0
    outside.let_all()
    await world.settled(work.source)
    await lane.stop()
    assert outside.asked == [("a", 0)]
    await check(world, work, [event])


async def test_an_async_handler_that_fails_unexpectedly_ends_the_lane_and_runs_again(
    world: World, outside: Outside
) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work, partitions=1)
    events = [world.event(work, key, 0) for key in "abc"]
    await world.post(*events)
    outside.errors["b", 0] = RuntimeError("the outside is odd")
    lane = world.lane()
    await world.until(lambda: len(outside.waiting) == 3)
    outside.let_all()
    with pytest.raises(HandlerFailed, match="the outside is odd"):
        await lane.ended()
    assert await position(world, work.source) <= 1
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    await check(world, work, events)
    await check_store(world)


async def test_an_async_handler_may_give_a_message_up(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work)
    events = [world.event(work, key, 0) for key in "abc"]
    outside.errors["b", 0] = PermanentError("never")
    outside.let_all()
    await world.post(*events, *events)
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    assert await counts(world) == {"a": 1, "c": 1}
    (letter,) = await dead_letters(world, work.source)
    assert letter.key == b"b"
    assert outside.asked.count(("b", 0)) == 1


async def test_a_stopped_lane_lets_go_of_messages_under_way(world: World, outside: Outside) -> None:
    work = asking(world.name, outside.ask)
    await world.start(work)
    events = [world.event(work, key, 0) for key in "abc"]
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: len(outside.waiting) == 3)
    await lane.stop()
    assert outside.waiting == set()
    outside.let_all()
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    await check(world, work, events)


# -- schemas ------------------------------------------------------------------------------------------------


def written_as(post: Post, fingerprint: str, value: bytes) -> Post:
    headers = [h for h in post.headers if h[0] != "schema-fingerprint"]
    return post._replace(value=value, headers=[*headers, ("schema-fingerprint", fingerprint.encode())])


#: k, i, colour in the order of MADE_NEWER: colour, i, k.
def newer(post: Post, key: str, i: int) -> Post:
    return written_as(
        post, fingerprint_of(MADE_NEWER), b"\x06red" + bytes([2 * i, 2 * len(key)]) + key.encode()
    )


async def test_a_message_of_an_unknown_schema_waits_and_everything_else_goes_on(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas), partitions=2)
    here, there = "a", next(k for k in "bcdefgh" if world.app.layout.partition_of(k.encode()) != _home(world))
    first, waiting = world.event(work, here, 0), newer(world.event(work, here, 1), here, 1)
    behind = [world.event(work, here, i) for i in range(2, 5)]
    others = [world.event(work, there, i) for i in range(5)]
    await world.post(first, waiting, *behind, *others)
    lane = await world.open()
    await world.until(lambda: lane.handled == 6)
    assert await dead_letters(world, work.source) == []
    schemas.add(MADE_NEWER)
    await world.until(lambda: lane.handled == 10)
    await world.settled(work.source)
    await lane.stop()
    assert work.hooks.calls.index((here, 1)) < work.hooks.calls.index((here, 2))
    assert await outputs_of(world, work) == 10
    await check_store(world)


def _home(world: World) -> int:
    return world.app.layout.partition_of(b"a")


async def outputs_of(world: World, work: object) -> int:
    return len(await world.records(work.output))


async def test_a_partition_that_waits_does_not_fill_the_lane_up(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas), partitions=2, max_backlog=20)
    there = next(k for k in "bcdefgh" if world.app.layout.partition_of(k.encode()) != _home(world))
    waiting = newer(world.event(work, "a", 0), "a", 0)
    await world.post(waiting, *(world.event(work, "a", i) for i in range(1, 60)))
    lane = await world.open()
    await world.post(*(world.event(work, there, i) for i in range(5)))
    await world.until(lambda: lane.handled == 5, timeout=3)
    schemas.add(MADE_NEWER)
    await world.until(lambda: lane.handled == 65)
    await world.settled(work.source)
    await lane.stop()
    await check_store(world)


async def test_what_older_and_newer_writers_wrote_is_read_by_our_schema(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas))
    schemas.add(MADE_NEWER)
    schemas.add(MADE_OLDER)
    post = world.event(work, "a", 7)
    older = written_as(world.event(work, "a", 0), fingerprint_of(MADE_OLDER), b"\x02a")
    await world.post(post, newer(world.event(work, "a", 3), "a", 3), older)
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    assert work.hooks.calls == [("a", 7), ("a", 3), ("a", 0)]


@pytest.mark.parametrize("fingerprint", [b"garbage", b"\xff\xfe", b"0123456789abcdef0", b"0123456789abcdeg"])
async def test_what_is_no_fingerprint_can_never_be_announced_and_does_not_wait(
    fake: FakeWorld, fingerprint: bytes
) -> None:
    work, schemas = counting(fake.name), Schemas()
    await fake.start(work, codecs=avro_codecs(schemas))
    post = fake.event(work, "a", 1)
    bad = [h for h in post.headers if h[0] != "schema-fingerprint"] + [("schema-fingerprint", fingerprint)]
    await fake.post(post._replace(headers=bad), fake.event(work, "a", 2))
    lane = await fake.open()
    await fake.until(lambda: lane.handled == 1)
    await fake.settled(work.source)
    await lane.stop()
    (letter,) = await dead_letters(fake, work.source)
    assert dict(letter.headers)["dlq-error-type"] == b"Undecodable"


async def test_a_row_of_an_unknown_schema_waits_until_it_is_announced(fake: FakeWorld) -> None:
    work, schemas = counting(fake.name), Schemas()
    await fake.start(work, codecs=avro_codecs(schemas))
    await fake.post(fake.event(work, "a", 0))
    lane = await fake.open()
    await fake.until(lambda: lane.handled == 1)
    await fake.settled(work.source)
    store = lane.lane.store
    ((key, value),) = store.scan("counts")
    newer_row = COUNT.replace('"fields": [', '"fields": [{"name": "more", "type": "int"},')
    store.apply([Write("counts", key, bytes.fromhex(fingerprint_of(newer_row)) + b"\x02" + value[8:])], {})
    await fake.post(fake.event(work, "a", 1))
    await fake.until(lambda: lane.lane.reopened > 20)
    assert lane.lane.state != "quarantined"
    schemas.add(newer_row)
    await fake.until(lambda: lane.handled == 2)
    await fake.settled(work.source)
    await lane.stop()
    assert await outputs_of(fake, work) == 2
